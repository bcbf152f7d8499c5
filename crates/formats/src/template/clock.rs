//! `strftime_now(format)`, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

use super::meter::{Meter, Outcome, TextBuilder};
use super::value::Value;

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

struct Moment {
    year: i64,
    /// From 0.
    month: usize,
    day: i64,
    weekday: usize,
    /// From 1.
    day_of_year: i64,
    second_of_day: i64,
    unix: i64,
    micros: u32,
}

impl Moment {
    fn new(time: SystemTime) -> Self {
        // A clock before 1970 is a broken clock; 1970 is as good an answer as any.
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix = i64::try_from(since.as_secs()).unwrap_or(0);
        let mut left = unix.div_euclid(86_400);
        let weekday = (left + 4).rem_euclid(7) as usize;
        // Every 400 years have 146 097 days; after whole cycles at most 400 years are walked.
        let mut year = 1970 + left / 146_097 * 400;
        left %= 146_097;
        while left >= 365 + i64::from(is_leap(year)) {
            left -= 365 + i64::from(is_leap(year));
            year += 1;
        }
        let day_of_year = left + 1;
        let mut month = 0;
        while left >= month_length(year, month) {
            left -= month_length(year, month);
            month += 1;
        }
        let second_of_day = unix.rem_euclid(86_400);
        let micros = since.subsec_micros();
        Self { year, month, day: left + 1, weekday, day_of_year, second_of_day, unix, micros }
    }
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn month_length(year: i64, month: usize) -> i64 {
    match month {
        1 => 28 + i64::from(is_leap(year)),
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

pub(crate) fn strftime(meter: &mut Meter, format: &str) -> Outcome<Value> {
    let moment = Moment::new(meter.now());
    let mut out = TextBuilder::default();
    write(meter, &mut out, &moment, format)?;
    out.into_value(meter)
}

fn write(meter: &mut Meter, out: &mut TextBuilder, moment: &Moment, format: &str) -> Outcome<()> {
    let mut chars = format.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push_char(meter, c)?;
            continue;
        }
        meter.steps(1)?;
        let unpadded = chars.next_if_eq(&'-').is_some();
        let Some(code) = chars.next() else {
            out.push(meter, if unpadded { "%-" } else { "%" })?;
            break;
        };
        let shorthand = match code {
            'F' => Some("%Y-%m-%d"),
            'T' | 'X' => Some("%H:%M:%S"),
            'R' => Some("%H:%M"),
            'D' | 'x' => Some("%m/%d/%y"),
            'c' => Some("%a %b %e %H:%M:%S %Y"),
            'r' => Some("%I:%M:%S %p"),
            _ => None,
        };
        match shorthand {
            Some(long) => write(meter, out, moment, long)?,
            None => out.push(meter, &field(moment, code, unpadded))?,
        }
    }
    Ok(())
}

fn field(moment: &Moment, code: char, unpadded: bool) -> String {
    let number = |value: i64, width: usize| match unpadded {
        true => value.to_string(),
        false => format!("{value:0width$}"),
    };
    let (hour, minute) = (moment.second_of_day / 3600, moment.second_of_day / 60 % 60);
    let (day, month) = (DAYS[moment.weekday], MONTHS[moment.month]);
    match code {
        'Y' => moment.year.to_string(),
        'C' => number(moment.year / 100, 2),
        'y' => number(moment.year % 100, 2),
        'm' => number(moment.month as i64 + 1, 2),
        'd' => number(moment.day, 2),
        'e' if unpadded => moment.day.to_string(),
        'e' => format!("{:2}", moment.day),
        'H' => number(hour, 2),
        'I' => number((hour + 11) % 12 + 1, 2),
        'M' => number(minute, 2),
        'S' => number(moment.second_of_day % 60, 2),
        'f' => format!("{:06}", moment.micros),
        'j' => number(moment.day_of_year, 3),
        'p' => if hour < 12 { "AM" } else { "PM" }.into(),
        'A' => day.into(),
        'a' => day[..3].into(),
        'B' => month.into(),
        'b' | 'h' => month[..3].into(),
        'u' => (if moment.weekday == 0 { 7 } else { moment.weekday }).to_string(),
        'w' => moment.weekday.to_string(),
        's' => moment.unix.to_string(),
        'n' => "\n".into(),
        't' => "\t".into(),
        '%' => "%".into(),
        // `datetime.now()` has no zone, so Python prints nothing for it.
        'z' | 'Z' => String::new(),
        _ => format!("%{}{code}", if unpadded { "-" } else { "" }),
    }
}
