//! A megabyte of mixed text in documents of a few kilobytes: this repository's code, prose in many scripts, and
//! random Unicode made of what tokenizers trip over.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::random::Random;

const CODE_BYTES: usize = 350_000;
const PROSE_BYTES: usize = 350_000;
const RANDOM_BYTES: usize = 400_000;
const DOCUMENT_BYTES: usize = 3_000;

pub(crate) fn documents() -> &'static [String] {
    static DOCUMENTS: OnceLock<Vec<String>> = OnceLock::new();
    DOCUMENTS.get_or_init(|| {
        let mut random = Random::new(1);
        let mut all = code();
        all.extend(fill(PROSE_BYTES, || prose(&mut random)));
        all.extend(fill(RANDOM_BYTES, || unicode_piece(&mut random)));
        assert!(all.iter().map(String::len).sum::<usize>() > 1_000_000);
        all
    })
}

fn fill(n_bytes: usize, mut piece: impl FnMut() -> String) -> Vec<String> {
    (0..n_bytes / DOCUMENT_BYTES)
        .map(|_| {
            let mut document = String::new();
            while document.len() < DOCUMENT_BYTES {
                document += &piece();
            }
            document
        })
        .collect()
}

fn code() -> Vec<String> {
    let mut files = Vec::new();
    collect_sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates"), &mut files);
    files.sort();
    let mut text = String::new();
    for file in files {
        text += &std::fs::read_to_string(file).unwrap();
    }
    let mut documents = Vec::new();
    // With another line end and indentation each time round, until there is enough.
    for (newline, indent) in [("\n", "    "), ("\r\n", "\t"), ("\n", "  "), ("\r", "      ")].iter().cycle() {
        let variant = text.replace("    ", indent).replace('\n', newline);
        let mut rest = variant.as_str();
        while !rest.is_empty() {
            let end = rest.ceil_char_boundary(DOCUMENT_BYTES);
            documents.push(rest[..end].to_owned());
            rest = &rest[end..];
        }
        if documents.len() * DOCUMENT_BYTES >= CODE_BYTES {
            break;
        }
    }
    documents.truncate(CODE_BYTES / DOCUMENT_BYTES);
    documents
}

fn collect_sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect_sources(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
}

const SENTENCES: &[&str] = &[
    "The clerk couldn't say whether they'd arrive by 10:45; she'll ask, and we've time.",
    "I'm told it's \"fine\" -- that's what everyone's uncle SAID in 1987, isn't it?",
    "THEY'RE LATE. WE'LL WAIT. IT'S 3.14159 METRES (OR 1,234,567.89 FEET)!",
    "Über die Brücke führt kein Weg zurück, außer man läßt den Fluß straßenweise trocken.",
    "L'été n'est qu'un mot ; aujourd'hui, j'aurais préféré l'œuvre d'un naïf.",
    "¿Cuántos años tardó el pingüino en cruzar la bahía? ¡Ninguno!",
    "Žluťoučký kůň příšerně úpěl ďábelské ódy, řekl ctihodný měšťan.",
    "İstanbul'da ığdırlı bir çocuk, IĞDIR yazıp ılık çay içti.",
    "Старый мост стоял над рекой, и никто не знал, КТО его построил в 1850-х годах.",
    "Το παλιό λιμάνι είχε ΤΡΙΑ καΐκια και δώδεκα γάτες· τίποτε άλλο.",
    "الطريق إلى القرية طويل، لكنّ المسافرين الـ١٢ لم يتعبوا.",
    "הדרך אל הכפר ארוכה, אבל שְׁלוֹשָׁה אנשים הלכו בה ב־1948.",
    "गाँव का रास्ता लंबा है, पर १२३ यात्री नहीं थके।",
    "หมู่บ้านอยู่ไกลมาก แต่นักเดินทางทั้ง ๑๒ คนไม่เหนื่อยเลย",
    "村子很远，但是三个旅人一点也不累。他们在2023年走了4567公里！",
    "村への道は長いが、旅人たちは疲れなかった。カタカナとひらがなと漢字、１２３。",
    "마을까지 가는 길은 멀지만 나그네 세 사람은 지치지 않았다.",
    "Đường về làng rất xa, nhưng ba người lữ khách không hề mệt mỏi.",
    "მთაზე გზა გრძელია. ՃԱՆԱՊԱՐՀԸ երկար է։ መንገዱ ረጅም ነው።",
    "e\u{301}te\u{301} nai\u{308}f A\u{30a}ngstro\u{308}m q\u{323}\u{307} q\u{307}\u{323} \u{1100}\u{1161}\u{11a8}",
    "def f(x: int) -> str:\n    return f\"{x:>10}\"  # padded\n\n\nclass A(B):\n\tpass\n",
    "<div class=\"a\"><s>old</s> &amp; new</div>\n<!-- </s> -->\n",
    "https://example.org/a/b?c=d&e=%20#f //comment\n/* x *//\n///\r\n",
];

const JOINTS: &[&str] =
    &[" ", "  ", "\n", "\n\n", "\r\n", "\t", " \n ", "   \n\n\t ", "\u{a0}", "\u{3000}", ""];

fn prose(random: &mut Random) -> String {
    format!("{}{}", random.pick(SENTENCES), random.pick(JOINTS))
}

/// Code points tokenizers trip over, each with what it is for.
const ODD: &[&str] = &[
    "\u{feff}",
    "\0",
    "\u{7f}",
    "\u{85}",
    "\u{a0}",
    "\u{1680}",
    "\u{180e}",
    "\u{2003}",
    "\u{2028}",
    "\u{2029}",
    "\u{202f}",
    "\u{205f}",
    "\u{3000}",
    "\u{200b}",
    "\u{200d}",
    "\u{ad}",
    "\u{fffd}",
    "\u{ffff}",
    "\u{10ffff}",
    "\u{e000}",
    "\r",
    "\n",
    "\r\n",
    "\t",
    "\u{b}",
    "\u{c}",
    " ",
    "  ",
    "   ",
    "                    ",
    "'s",
    "'S",
    "'\u{17f}",
    "'T",
    "'rE",
    "'Ve",
    "'m",
    "'LL",
    "'lL",
    "'d",
    "'\u{130}",
    "'\u{212a}",
    "''s",
    " 's",
    "\u{2019}s",
    "'ſs",
    "ſ",
    "İ",
    "ı",
    "ẞ",
    "ß",
    "ǅ",
    "ǈ",
    "ʰ",
    "ª",
    "ǅungla",
    "\u{fb05}",
    "'\u{fb06}",
    "0",
    "12",
    "123",
    "1234",
    "12345678901234567890",
    "٣٤٥",
    "१२३४",
    "１２３",
    "Ⅷ",
    "½",
    "²",
    "㊿",
    "𝟘𝟙𝟚",
    "𐒠",
    "\u{301}",
    "\u{301}\u{302}\u{323}",
    "a\u{301}",
    "\u{20dd}",
    "\u{903}",
    "क्षि",
    "\u{fe0f}",
    "e\u{301}\u{301}\u{301}",
    "👩\u{200d}👩\u{200d}👧\u{200d}👦",
    "🏳\u{fe0f}\u{200d}🌈",
    "👍🏽",
    "🇩🇪",
    "🙂",
    "#\u{fe0f}\u{20e3}",
    "𝔘𝔫𝔦",
    "𐐀𐐨",
    "𠀀",
    "HTMLParser",
    "camelCase",
    "snake_case",
    "ABCdef",
    "ДОМдом",
    "ΑΒΓαβγ",
    "ＡＢｃ",
    "中A中a",
    "ʰAʰa",
    "A\u{301}Bc",
    "!",
    "!!",
    "...",
    "/",
    "//",
    "!/\n/\r",
    " !",
    " /",
    "\\",
    "#",
    "{}",
    "<|",
    "|>",
    "@",
    "\u{201c}",
    "——",
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "</s>",
    "<|eot_id|>",
    "<|start|>",
    "<|end|>",
    "a",
    "b",
    "the",
    " the",
    "Hello",
    " World",
    "x",
    "Z",
    "ß",
    "é",
    "ñ",
    "я",
    "Я",
    "ж",
    "中",
    "文",
    "한",
    "ا",
    "ไ",
];

/// Ranges dense in assigned characters, so that random ones are not all unassigned.
const RANGES: &[(u32, u32)] = &[
    (0x20, 0x7f),
    (0x80, 0x250),
    (0x250, 0x530),
    (0x530, 0x800),
    (0x900, 0x1000),
    (0x1000, 0x1800),
    (0x1800, 0x2000),
    (0x2000, 0x2c00),
    (0x2c00, 0x3100),
    (0x4e00, 0x9fff),
    (0xa000, 0xac00),
    (0xac00, 0xd7a4),
    (0xe000, 0x1_0000),
    (0x1_0000, 0x1_1000),
    (0x1_1000, 0x1_3000),
    (0x1_3000, 0x1_b000),
    (0x1_d000, 0x1_f000),
    (0x1_f000, 0x2_0000),
    (0x2_0000, 0x3_2000),
    (0xe_0000, 0xe_01f0),
    (0, 0x11_0000),
];

fn unicode_piece(random: &mut Random) -> String {
    match random.below(12) {
        0..=6 => random.pick(ODD).to_string(),
        7..=9 => {
            let &(from, to) = random.pick(RANGES);
            (0..random.below(6))
                .filter_map(|_| char::from_u32(from + random.below((to - from) as usize) as u32))
                .collect()
        }
        10 => random.pick(&[" ", "\n", "\t", "\u{2003}", "\r\n", " \n"]).repeat(random.below(12)),
        _ => random.pick(ODD).repeat(random.below(5)),
    }
}
