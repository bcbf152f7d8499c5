"""One language feature a row, all with the same variables. Where Jinja2 raises, ours has to refuse too."""

VARIABLES = {
    "name": "Ada",
    "n": 3,
    "f": 2.5,
    "yes": True,
    "no": False,
    "nothing": None,
    "empty": "",
    "words": ["pear", "Apple", "fig"],
    "nested": {"a": {"b": [1, {"c": "deep"}]}},
    "d": {"x": 1, "items": "key named items", "Z": None},
    "messages": [
        {"role": "system", "content": " be kind "},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yo", "tool_calls": [{"name": "f"}]},
    ],
    "text": "The quick\nbrown fox\n\njumps",
    "uni": "naïve 日本 \u00e9 😀",
    "html": "<a href=\"x\">'&'</a>",
}

SNIPPETS = r"""
plain text
{{ name }}
{{ missing }}|
{{ missing.attr }}
{{ missing[0] }}
{{ nested.a.b[1].c }} {{ nested['a']['b'][0] }} {{ nested.a.nope }}|
{{ nested.a.nope.more }}
{{ yes }} {{ no }} {{ nothing }} {{ n }} {{ f }} {{ 1e20 }} {{ 1e-7 }} {{ 100000.0 }} {{ 1e16 }} {{ 123456789012345.6 }}
{{ words }} {{ nested }} {{ d }} {{ (1,) }} {{ (1, 'a') }} {{ () }} {{ [] }} {{ {} }}
{{ "it's" }} {{ ["it's", 'say "x"', 'both \' "', 'tab\t', 'nl\n', 'back\\', '\x01', 'é', '\u200b'] }}
{{ 1 + 2 * 3 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}
{{ 1 ~ 2 ~ 'a' ~ none ~ true }} {{ 'x' + 2 ~ 3 * 2 }}
{{ 1 + 2 ~ 3 }}
{{ 'a' + 'b' }} {{ [1] + [2] }} {{ (1,) + (2,) }} {{ 'ab' * 3 }} {{ [0] * 3 }} {{ 2 * 'x' }} {{ 'x' * -1 }}|
{{ 'a' + 1 }}
{{ 1 + 'a' }}
{{ 1 / 0 }}
{{ -2 ** 2 }} {{ 2 ** 3 ** 2 }} {{ - 3 }} {{ +3 }} {{ --3 }}
{{ 1 < 2 }} {{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1,2] < [1,3] }} {{ 'a' == 1 }} {{ 1 != 2 }}
{{ 'a' < 1 }}
{{ 'pear' in words }} {{ 'x' not in words }} {{ 'ea' in 'pear' }} {{ 'x' in d }} {{ 2 in (1, 2) }} {{ 'a' in missing }} {{ 3 in range(5) }} {{ 5 in range(0, 10, 2) }}
{{ 1 in 'abc' }}
{{ yes and no }} {{ yes or no }} {{ not yes }} {{ '' or 'default' }} {{ 'a' and 'b' }} {{ none or 0 }} {{ not missing }}
{{ 'a' if yes else 'b' }} {{ 'a' if no else 'b' }} {{ 'a' if no }}| {{ 'a' if no else 'b' if no else 'c' }}
{{ name.upper() }} {{ name.lower() }} {{ 'hello world'.title() }} {{ "they're bill's".title() }} {{ 'hELLO'.capitalize() }} {{ name|upper }} {{ 'foo-bar baz(qux'|title }}
{{ '  x '.strip() }}| {{ 'xxaxx'.strip('x') }} {{ 'abcba'.lstrip('ab') }} {{ 'abcba'.rstrip('ab') }} {{ '\n a \n'.rstrip() }}| {{ 'xay'.strip('yx') }}
{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a b c'.split(None, 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b  c '.rsplit(None, 1) }} {{ 'a,b'.split(sep=',', maxsplit=1) }}
{{ 'x</think>y'.split('</think>')[-1] }} {{ 'x</think>y'.split('</think>')[0].split('<think>')[-1] }}
{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith('bc') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.find('c') }} {{ 'abc'.find('z') }} {{ 'abcabc'.rfind('b') }} {{ 'aXbX'.count('X') }} {{ 'naïve'.find('v') }} {{ 'abcabc'.find('a', 1) }} {{ 'aaa'.count('') }}
{{ 'a-b-c'.replace('-', '+') }} {{ 'a-b-c'.replace('-', '+', 1) }} {{ 'abc'.replace('', '.') }} {{ 'a-b'|replace('-', '') }} {{ 123|replace(2, 'x') }}
{{ 'a\nb\r\nc'.splitlines() }} {{ 'a\n'.splitlines() }} {{ 'a\nb'.splitlines(true) }} {{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.partition('x') }}
{{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ '7'.zfill(3) }} {{ '-7'.zfill(4) }} {{ 'a'.ljust(3) }}| {{ 'a'.rjust(3, '.') }} {{ 'ab'.center(5, '*') }} {{ 'a'.center(4, '*') }}
{{ '12'.isdigit() }} {{ 'a1'.isalnum() }} {{ 'ab'.isalpha() }} {{ ' '.isspace() }} {{ 'Ab'.isupper() }} {{ 'ab1'.islower() }} {{ ''.isdigit() }}
{{ ', '.join(words) }} {{ words|join(', ') }} {{ [1, 2, none]|join('-') }} {{ messages|join(',', attribute='role') }} {{ 'abc'|join('.') }}
{{ ','.join([1, 2]) }}
{{ '{} and {}'.format('a', 1) }} {{ '{1}{0}'.format('a', 'b') }} {{ '{x:>5}|{y:<5}|{z:^5}'.format(x='a', y='b', z='c') }} {{ '{:05.2f}'.format(3.14159) }} {{ '{:,}'.format(1234567) }} {{ '{{}}'.format() }} {{ '{:x}'.format(255) }} {{ '{!r}'.format('a') }} {{ '{0[k]}'.format({'k': 1}) }} {{ '{:%}'.format(0.25) }} {{ '{:+d}'.format(3) }} {{ '{:*^9}'.format('mid') }} {{ '{}'.format(true) }} {{ '{}'.format(none) }}
{{ '%s is %d' % ('x', 3) }} {{ '%5s|%-5s|%05d|%.2f|%x|%r|%%' % ('a', 'b', 42, 3.14159, 255, 'q') }} {{ '%s' % 1 }} {{ '%(a)s-%(b)03d' % {'a': 1, 'b': 2} }} {{ '%s' % [1] }} {{ '%+d % d' % (3, 4) }} {{ '%e' % 12345.678 }} {{ '%g' % 0.00001234 }} {{ '%g' % 123456789 }} {{ '%c' % 'x' }} {{ '%*d' % (5, 42) }} {{ '%d' % 3.9 }} {{ '%s|'|format('a') }}
{{ '%s %s' % 'a' }}
{{ '%s' % ('a', 'b') }}
{{ words[0] }} {{ words[-1] }} {{ words[9] }}| {{ words[1:] }} {{ words[::-1] }} {{ words[:-1] }} {{ name[0] }} {{ name[::-1] }} {{ uni[0:3] }} {{ uni[-1] }} {{ words[10:] }} {{ words[-2:] }} {{ range(10)[2:8:3]|list }} {{ 'abcdef'[4:1:-1] }} {{ 'abcdef'[::2] }} {{ (1,2,3)[1:] }} {{ words[none:1] }}
{{ words[::0] }}
{{ words.0 }} {{ nested.a.b.1.c }}
{{ words.append('x') }}
{{ d.update({'y': 1}) }}
{{ d.pop('x') }}
{{ words.append is defined }} {{ d.items is defined }} {{ d.pop is defined }} {{ name.upper is defined }}
{{ d['items'] }} {{ d.get('x') }} {{ d.get('nope') }} {{ d.get('nope', 5) }} {{ d.x }} {{ d.Z }} {{ d.nope }}|
{{ d.items() }} {{ d.keys() }} {{ d.values()|list }} {{ d|items|list }} {{ d.keys()|list }} {{ d|list }} {{ d|length }}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}
{% for k in d %}{{ k }};{% endfor %}{% for k, v in d|items %}{{ k }}={{ v }},{% endfor %}{% for k, v in d|dictsort %}{{ k }},{% endfor %}
{% for c in 'abc' %}{{ c }}.{% endfor %}
{% for x in missing %}x{% else %}empty{% endfor %}
{% for x in none %}x{% endfor %}
{% for x in 5 %}x{% endfor %}
{% for m in messages %}{{ loop.index }}/{{ loop.length }} {{ loop.index0 }} {{ loop.revindex }} {{ loop.revindex0 }} {{ loop.first }} {{ loop.last }} {{ loop.depth }}|{% endfor %}
{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined else '-' }}<{{ m.role }}>{{ loop.nextitem.role if loop.nextitem else '-' }} {% endfor %}
{% for m in messages if m.role != 'system' %}{{ loop.index }}{{ m.role }}{% if not loop.last %},{% endif %}{% endfor %}
{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}
{% for i in range(3) %}{{ loop.cycle('a', 'b') }}{% endfor %}
{% for a, b in [(1, 2), (3, 4)] %}{{ a + b }} {% endfor %}{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}
{% for i in [1,2] %}{% for j in [3,4] %}{{ loop.index }}{{ i }}{{ j }} {% endfor %}{{ loop.index }}{% endfor %}
{% for x in words|reverse %}{{ x }} {% endfor %}{{ 'abc'|reverse }} {{ words|reverse|list }}
{% for m in messages[::-1] %}{% set i = (messages|length - 1) - loop.index0 %}{{ i }}{{ m.role }} {% endfor %}
{% set x = 1 %}{% for i in [1,2] %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}
{% set ns = namespace(x=1, y=none) %}{% for i in [1,2] %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }} {{ ns.y }} {{ ns.z }}|
{% set ns = namespace() %}{% set ns.a = [1] %}{% set ns.a = ns.a + [2] %}{{ ns.a }}{{ ns['a'] }}
{% set d2 = {} %}{% set d2.x = 1 %}
{% if yes %}{% set x = 1 %}{% endif %}{{ x }}{% if no %}{% set name = 'changed' %}{% endif %}{{ name }}
{% for i in [1] %}{% if yes %}{% set name = 'inner' %}{% endif %}{{ name }}{% endfor %}{{ name }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set t = 1, 2 %}{{ t }}
{% set x %}block {{ name }}{% endset %}[{{ x }}] {% set y | upper %}abc{% endset %}{{ y }}
{% set x = 'outer' %}{% set b %}{% set x = 'inner' %}{{ x }}{% endset %}{{ b }}{{ x }}
{% if n == 1 %}one{% elif n == 2 %}two{% elif n == 3 %}three{% else %}many{% endif %}
{% if missing %}a{% elif nothing %}b{% elif empty %}c{% elif [] %}d{% elif {} %}e{% elif 0 %}f{% elif 0.0 %}g{% else %}all false{% endif %}
{% macro f(a, b='B', c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }} {{ f(1, 2) }} {{ f(1, c=3) }} {{ f(a=1, b=2, c=3) }} {{ f() }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=2) }}
{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, k=3) }}
{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}
{% macro f() %}{{ x }}{% endmacro %}{% set x = 'late' %}{{ f() }}
{% macro f() %}{% set x = 'in' %}{{ x }}{% endmacro %}{% set x = 'out' %}{{ f() }}{{ x }}
{% macro f(a, b=a ~ '!') %}{{ b }}{% endmacro %}{{ f('x') }}
{% macro wrap() %}<{{ caller() }}>{% endmacro %}{% call wrap() %}in {{ name }}{% endcall %}
{% macro each(xs) %}{% for x in xs %}{{ caller(x) }}{% endfor %}{% endmacro %}{% call(x) each([1,2]) %}[{{ x }}]{% endcall %}
{% macro f() %} a {% endmacro %}{{ f()|trim }}|{{ f().strip() }}|{{ f() + 'b' }}|{{ f() is string }}
{{ f() }}{% macro f() %}late{% endmacro %}
{% filter upper %}abc {{ name }}{% endfilter %}
{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}|
{% generation %}made {{ name }}{% endgeneration %}
{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}
{% raw %}{{ not }} {% a %} {# b #}{% endraw %}
{# a comment #}x{#- another -#} y
{{ 'é😀' }} {{ '\u00e9\x41\101\n\q' }} {{ 'a' 'b' "c" }} {{ '\'' }}
{{ 0x1f }} {{ 0b11 }} {{ 0o17 }} {{ 1_000 }} {{ 1.5e3 }} {{ 1e3 }} {{ 1.0 }}
{{ words|length }} {{ words|count }} {{ ''|length }} {{ uni|length }} {{ missing|length }} {{ d|length }} {{ range(4)|length }}
{{ 5|length }}
{{ words|first }} {{ words|last }} {{ []|first }}| {{ 'abc'|first }} {{ 'abc'|last }} {{ d|first }} {{ range(5)|last }}
{{ words|sort }} {{ words|sort(reverse=true) }} {{ words|sort(case_sensitive=true) }} {{ messages|sort(attribute='role')|map(attribute='role')|list }} {{ [3,1,2]|sort }} {{ 'cab'|sort }} {{ messages|sort(attribute='role,content')|map(attribute='role')|join(',') }}
{{ [1, 'a']|sort }}
{{ [1,2,1,3]|unique|list }} {{ ['a','A','b']|unique|list }} {{ [3,1,2]|min }} {{ [3,1,2]|max }} {{ ['b','A']|min }} {{ []|max }}| {{ [1,2,3]|sum }} {{ [1.5,2]|sum }} {{ [{'v':1},{'v':2}]|sum(attribute='v') }} {{ [1]|sum(start=10) }}
{{ messages|map(attribute='role')|list }} {{ words|map('upper')|join(' ') }} {{ messages|map(attribute='tool_calls', default='none')|list }} {{ messages|map(attribute='nope')|list }} {{ words|map('replace', 'p', 'q')|list }} {{ nested.a.b|map('string')|list }}
{{ messages|selectattr('role', 'equalto', 'user')|list }} {{ messages|selectattr('tool_calls', 'defined')|map(attribute='role')|list }} {{ messages|rejectattr('role', 'in', ['user', 'system'])|map(attribute='role')|list }} {{ [0,1,2]|select|list }} {{ [1,2,3,4]|select('odd')|list }} {{ [1,2,3]|reject('gt', 1)|list }} {{ messages|selectattr('tool_calls')|list|length }}
{% if messages|selectattr('role', 'equalto', 'nobody') %}true{% endif %}{% if messages|selectattr('role', 'equalto', 'nobody')|list %}never{% endif %}
{{ messages|selectattr('role', 'equalto', 'user')|first }} {{ (messages|selectattr('role', 'equalto', 'user')|first).content }}
{% set g = words|map('upper') %}{{ g|list }}{{ g|list }}
{{ words|map('upper')|length }}
{{ [1,2,3,4,5]|batch(2)|list }} {{ [1,2,3]|batch(2, 0)|list }}
{{ 'abc'|list }} {{ d|list }} {{ (1,2)|list }} {{ missing|list }} {{ range(3)|list }} {{ range(3) }} {{ range(1, 10, 3) }} {{ range(5, 0, -2)|list }} {{ range(0)|list }}
{{ range(100001) }}
{{ '42'|int }} {{ '4x'|int }} {{ '4x'|int(7) }} {{ 3.9|int }} {{ -3.9|int }} {{ true|int }} {{ '3.7'|int }} {{ 'ff'|int(base=16) }} {{ '0x1f'|int(0, 16) }} {{ none|int }} {{ ' 5 '|int }} {{ '1_000'|int }}
{{ '1.5'|float }} {{ 'x'|float }} {{ 3|float }} {{ '1e3'|float }} {{ 'x'|float(2.5) }} {{ 'inf'|float }}
{{ missing|int }}
{{ -3|abs }} {{ -3.5|abs }} {{ 2.5|round }} {{ 3.5|round }} {{ 2.567|round(2) }} {{ 42|round }} {{ 2.1|round(0, 'ceil') }} {{ 2.9|round(method='floor') }} {{ 1234|round(-2) }} {{ 2.675|round(2) }} {{ 0.5|round }}
{{ missing|default('x') }} {{ empty|default('x') }}| {{ empty|default('x', true) }} {{ nothing|default('x') }} {{ nothing|d('x', boolean=true) }} {{ missing|d }}|
{{ name|string }} {{ 1|string + 'a' }} {{ none|string }} {{ [1]|string }} {{ missing|string }}|
{{ text|indent }} {{ text|indent(2) }} {{ text|indent(2, true) }} {{ text|indent(2, true, true) }} {{ text|indent('> ') }} {{ 'a\n'|indent }}| {{ ''|indent(2, true) }}|
{{ '  a '|trim }}| {{ 'xax'|trim('x') }} {{ missing|trim }}| {{ 5|trim }}
{{ html|e }} {{ html|escape }} {{ html|safe }} {{ '<' ~ ('<'|safe) }} {{ '<' + ('<'|safe) }} {{ ('<'|safe) + '<' }} {{ ('<'|e)|e }} {{ ['<'|safe] }} {{ ('a'|safe).replace('a', '<') }} {{ '<'|safe|upper + '<' }} {{ ('%s'|safe) % '<' }}
{{ d|tojson }} {{ nested|tojson }} {{ [1, 2.0, none, true, 'é"\n\\/\t\x01\x7f']|tojson }} {{ {}|tojson }} {{ []|tojson }} {{ 1e20|tojson }} {{ uni|tojson }} {{ html|tojson }} {{ (1,2)|tojson }} {{ {1: 'a', none: 'b', true: 'c', 1.5: 'd'}|tojson }}
{{ nested|tojson(indent=2) }} {{ [[], {}, [1]]|tojson(indent=4) }} {{ d|tojson(separators=(',', ':')) }} {{ {'b': 1, 'a': {'d': 1, 'c': 2}}|tojson(sort_keys=true) }} {{ uni|tojson(ensure_ascii=true) }} {{ {'a': 1}|tojson(indent='--') }} {{ [1]|tojson(indent=0) }} {{ [1,[2]]|tojson(indent=2, separators=('; ', '= ')) }}
{{ missing|tojson }}
{{ words|map('upper')|tojson }}
{{ nothing|map('upper')|list }} {{ nothing|select|list }} {{ 0|map(attribute='x')|list }}
{{ nothing|join }}
{{ 1|map('upper')|list }}
{{ 9223372036854775807 }} {{ 18446744073709551615 }} {{ [18446744073709551615]|tojson }} {{ -9223372036854775808 }}
{{ name is defined }} {{ missing is defined }} {{ missing is undefined }} {{ missing is not defined }} {{ nothing is none }} {{ nothing is defined }} {{ missing is none }} {{ nested.a.q is defined }}
{{ name is string }} {{ n is string }} {{ d is mapping }} {{ words is mapping }} {{ words is iterable }} {{ name is iterable }} {{ n is iterable }} {{ words is sequence }} {{ d is sequence }} {{ d.items() is sequence }} {{ d.items() is iterable }} {{ missing is iterable }} {{ missing is sequence }} {{ nothing is iterable }}
{{ n is number }} {{ yes is number }} {{ f is number }} {{ n is integer }} {{ yes is integer }} {{ f is float }} {{ yes is boolean }} {{ n is boolean }} {{ yes is true }} {{ 1 is true }} {{ no is false }} {{ 0 is false }} {{ name is number }}
{{ 3 is odd }} {{ 4 is even }} {{ 9 is divisibleby(3) }} {{ 9 is divisibleby 2 }} {{ 1 is eq 1 }} {{ 1 is equalto 2 }} {{ 1 is sameas 1 }} {{ 1 is in [1, 2] }} {{ 3 is not in [1, 2] }} {{ 2 is gt 1 }} {{ 2 is lessthan 1 }} {{ none is sameas none }} {{ 'a' is lower }} {{ 'A' is upper }} {{ 2 is ge(2) }} {{ 1 is ne 2 }}
{{ x is defined and x is string or 'no' }} {{ not n is string }}
{{ n is string is none }}
{{ n|nosuchfilter }}
{{ n is nosuchtest }}
{% nosuchtag %}
{{ nosuchfunction() }}
{{ raise_exception('stop') }}
{% if no %}{{ raise_exception('stop') }}{% endif %}fine
{{ strftime_now('%Y-%m-%d %H:%M:%S %d %b %Y %B %a %A %j %y %I %p %-d %-m %e %F %T %% %w %u') }}
{{ namespace(a=1).a }} {{ dict(a=1, b=2) }} {{ dict({'x': 1}, y=2) }} {{ dict([('k', 1)]) }}
{{ {'a': 1, 'b': [1, {'c': none}]} }} {{ {'a': 1}['a'] }} {{ {'a': 1}.a }} {{ {'k': 1, 'k': 2} }} {{ {1: 2}[1] }} {{ {1: 2}[1.0] }} {{ {(1,2): 3}[(1,2)] }} {{ [1,2,3,][0] }} {{ {'a': 1,}['a'] }}
{{ 1 if 2 else 3, 4 }} {{ (1, 2)[0] }} {{ ('a') }} {{ (('a',),) }}
{{ [1, 2] == [1, 2] }} {{ {'a': 1} == {'a': 1.0} }} {{ (1,) == [1] }} {{ missing == missing2 }} {{ missing == none }} {{ 'a' != missing }}
{{ missing + 'x' }}
{{ missing < 1 }}
{{ -missing }}
{{ missing ~ 'x' }} {{ '%s' % missing }}| {{ [missing] }}
{{ missing() }}
{{ name() }}
{{ nothing.x }}| {{ n.x }}| {{ nothing['x'] }}| {{ words['x'] }}| {{ words.x }}| {{ name.x }}| {{ name['x'] }}|
{{ nothing.x.y }}
{{ d|dictsort }} {{ {'b': 1, 'A': 2}|dictsort }} {{ {'b': 1, 'A': 2}|dictsort(true) }} {{ {'b': 1, 'A': 2}|dictsort(by='value') }} {{ {'b': 1, 'A': 2}|dictsort(reverse=true) }}
{{ words.index('fig') }} {{ words.count('fig') }} {{ (1,1,2).count(1) }} {{ [1,2]|attr('count') is defined }} {{ d|attr('x') }}|
{{ words.index('nope') }}
{{ d.__class__ }}| {{ ''.__class__.__mro__ }}
{{ ().__class__.__bases__[0].__subclasses__() }}
{{ loop }}
{% for x in [1] %}{{ loop is defined }}{% endfor %}{{ loop is defined }}
{% for x in [] %}{% else %}{% set q = 1 %}{{ q }}{% endfor %}{{ q }}|
{% for i in range(3) %}{{ i }}{{ x }}{% set x = i %}{% endfor %}
{% break %}
{% for i in [1, 2] %}{{ i }}{% break %}{% else %}no round got to its end{% endfor %}
{% for i in [1, 2] %}{{ i }}{% if i == 1 %}{% continue %}{% endif %}{% else %}else{% endfor %}
{% filter upper %}[{{ name }}]{% endfilter %}{% set name = 'hidden until here' %}{{ name }}
{% filter upper %}[{{ name }}]{% endfilter %}{% if yes %}{% set name = 'conditional' %}{% endif %}{{ name }}
{% macro f() %}[{{ name }}]{% endmacro %}{{ f() }}{% set name = 'set' %}{{ f() }}
{% macro f() %}[{{ name }}]{% endmacro %}{{ f() }}{% set name = name ~ '!' %}{{ f() }}
{% for i in [1, 2] %}{% generation %}{{ n }}{% endgeneration %}{% set n = i %}{{ n }}{% endfor %}{{ n }}
{{ [{'a': none}, {}]|sort(attribute='a') }} {{ ['b', 'a']|sort(attribute='x') }}
{{ 2.5 is odd }} {{ 4.0 is even }} {{ 7 % -2.5 }} {{ 5 % -2.5 }} {{ -0.5 // -7 }} {{ 7 // -2 }}
{{ '{:08}|{:8}|{:08}|{:>6}'.format('text', 'text', 42, true) }}
{{ '{:>6}'.format(none) }}
{{ '{:+}'.format('text') }}
{{ [1] in {} }}
{{ [[1]]|unique|list }}
{{ d.items()[1:] }}
{{ missing|float }}
{% for i in [1] %}{% macro f() %}{{ i }}{% endmacro %}{{ f() }}{% endfor %}
{% if %}x{% endif %}
{% if yes %}x
{% endif %}
{{ (1 }}
{{ 'abc }}
{{ }}
{% for x words %}{% endfor %}
{% set = 1 %}
{{ a b }}
{{ {'a' 1} }}
{{ [1, 2 }}
{{ 1 is }}
{{ foo| }}
{% endfor %}
{% if yes %}{% endfor %}
{# unclosed
{% raw %} unclosed
{{ f(a=1, 2) }}
{% macro f(a=1, b) %}{% endmacro %}
{{ ["a", "b"] | map("upper") | join(", ") if yes else "none" }}
{%- if messages[0]['role'] == 'system' -%}{{ messages[0]['content']|trim }}{%- endif -%}
{{ messages[0].content.strip() + '|' + messages[-1]['role'] }}
{%- set messages = messages[1:] -%}{{ messages|length }}
{{ (messages|last)['tool_calls'][0].name }} {{ messages[2].tool_calls is defined and messages[2].tool_calls }} {{ 'tool_calls' in messages[2] }}
{{ "<|im_start|>" ~ name + '\n' }}{{ '' if no else 'x' -}}   y
{{ 1.0 }} {{ 1.10 }} {{ 0.1 + 0.2 }} {{ 1/3 }} {{ 1e100 }} {{ 5e-324 }} {{ 1.7976931348623157e308 }} {{ -0.0 }} {{ 1e22 }} {{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }}
{{ true + 1 }} {{ true and 'x' }} {{ [true, false]|sum }} {{ 3 == 3.0 }} {{ '3' == 3 }} {{ 10 ** 20 }} {{ 2 ** 0.5 }} {{ 4 ** 0.5 }} {{ 6 / 3 }}
{{ 'ß'.upper() }} {{ 'ΑΣ'.lower() }} {{ 'ǆ'.upper() }} {{ 'éa'.capitalize() }} {{ 'o\'neil x-ray'|title }} {{ 'ÀB'|lower }}
"""

BLOCKS = [
    # Whitespace control: trim_blocks, lstrip_blocks, and the signs.
    "a\n{% if yes %}\nb\n{% endif %}\nc\n",
    "a\n   {% if yes %}\n  b\n   {% endif %}\nc",
    "a\n   {%+ if yes %}\n  b\n   {%+ endif %}\nc",
    "a  {% if yes %}  b  {% endif %}  c",
    "a \n {%- if yes -%} \n b \n {%- endif -%} \n c",
    "a\n{% if yes +%}\nb\n{% endif +%}\nc",
    "  {{ name }}  \n  {{- name -}}  \n  x",
    "{{ name }}\n{{ name }}\n\n",
    "a\n  {# note #}\nb\n {#- note -#} \nc {# x #} d\n",
    "\n\n{% if yes %}\n\nx\n{% endif %}\n\n",
    "{% raw %}\n  {{ a }}\n{% endraw %}\nb",
    "  {%- raw -%}\n  {{ a }}\n  {%- endraw -%}\nb",
    "   {% raw %} x {% endraw %}   ",
    "{% for x in words %}\n  {{ x }}\n{% endfor %}\ndone\n",
    "{% for x in words -%}\n  {{ x }}\n{%- endfor %}\ndone\n",
    "\t{% set x = 1 %}\t{% set y = 2 %}\n\t{{ x }}{{ y }}",
    "a\r\n{% if yes %}\r\nb{% endif %}\rc\r\n",
    "x{% set a = 1 %}\n\n  {% set b = 2 %}\ny",
    "{{ 'a\nb' }}{{ \"c\r\nd\" }}",
    "{%- macro f(x) -%}\n  [{{ x }}]\n{%- endmacro -%}\n\n{{ f(1) }}\n{{ f(2) }}\n",
    "{% if yes %}a{% else %}\nb{% endif %}\n   {% if yes %}c\n{% endif %}d",
    "line one\n{{- ' joined' }}\n",
    "{{ {'a': {'b': 1}} }}{{ {'a': {'b': {}}}}}",
    "{% set x = {'a': {'b': 2}} %}{{ x.a.b }}",
    "a\u00a0{%- if yes %}b{% endif %}",
    "a\n\u2003{% if yes %}b{% endif %}",
    "{%if yes%}tight{%endif%}{{name}}{{-name-}}{#c#}",
    "{{ words\n  | join(\n ', ') }}\n{% if yes and\n   n == 3 %}\nok\n{% endif %}",
    "{{ '{{ x }}' }} {{ '{% y %}' }} {{ \"}}\" }} {{ '%}' }}",
    "100% {sure} { {x} } {",
]

ROWS = SNIPPETS.strip().split("\n") + BLOCKS
