//! Checks grammars like those that people use, and those that try to do harm.

use std::fmt::Write as _;

use super::exactness::{accepts, matcher};
use super::{emit, lexemes, parse, reduce, to_lark};

/// The grammar of JSON that comes with llama.cpp, with the same rules.
const JSON: &str = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"#;

const ARITHMETIC: &str = r#"
root  ::= (expr "=" ws num "\n")+
expr  ::= term ([-+*/] term)*
term  ::= num | "(" ws expr ")" ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"#;

const CHESS: &str = r#"
root   ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move   ::= (pawn | nonpawn | castle) [+#]?
pawn   ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
castle ::= "O-O" "-O"?
"#;

const LIST: &str = r#"
root ::= item+
item ::= "- " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n"
"#;

/// What llama.cpp makes of a JSON schema that refers to itself.
const SCHEMA: &str = r#"
root ::= node
node ::= "{" space name-kv ( "," space ( children-kv | extra-kv ) )? "}" space
name-kv ::= "\"name\"" space ":" space string
children-kv ::= "\"children\"" space ":" space "[" space ( node ( "," space node )* )? "]" space
extra-kv ::= "\"extra\"" space ":" space ( integer | boolean )
string ::= "\"" char* "\"" space
char ::= [^"\\\x7F\x00-\x1F] | [\\] (["\\bfnrt] | "u" [0-9a-fA-F]{4})
integer ::= ("-"? integral-part) space
integral-part ::= [0] | [1-9] [0-9]{0,15}
boolean ::= ("true" | "false") space
space ::= | " " | "\n"{1,2} [ \t]{0,20}
"#;

/// The number of terminals and of leaves that a grammar comes to.
fn counts(text: &str) -> (usize, usize) {
    let grammar = reduce::inline(&reduce::prune(parse::parse(text).unwrap()).unwrap());
    let plan = lexemes::choose(&grammar, lexemes::BUDGET);
    let lark = emit::write(&grammar, &plan).unwrap();
    (
        lark.lines().filter(|line| line.starts_with('t')).count(),
        plan.leaves.len(),
    )
}

fn check(text: &str, yes: &[&str], no: &[&str]) {
    let lark = to_lark(text).unwrap();
    let matcher = matcher(&lark).unwrap_or_else(|error| panic!("{error}\n{lark}"));
    for sample in yes {
        assert_eq!(
            accepts(&matcher, sample),
            Ok(true),
            "{sample:?} is refused\n{lark}"
        );
    }
    for sample in no {
        assert_eq!(
            accepts(&matcher, sample),
            Ok(false),
            "{sample:?} is accepted\n{lark}"
        );
    }
}

#[test]
fn json_is_json() {
    let yes = [
        "{}",
        "{ }\n\t ",
        r#"{"a": [1, -2.5e+31, "x\né\u00e9", true, null, {}], "b":{"c": false}}"#,
        "{\"a\":\"\"}",
    ];
    let no = [
        "",
        "[]",
        "{",
        "{\"a\"}",
        "{\"a\": 01}",
        "{\"a\": tru}",
        "{\"a\":\"\n\"}",
        "{}  ",
    ];
    check(JSON, &yes, &no);
}

#[test]
fn json_needs_few_terminals() {
    println!("{}", to_lark(JSON).unwrap());
    let (terminals, leaves) = counts(JSON);
    println!("JSON: {terminals} terminals, {leaves} leaves");
    let lark = to_lark(JSON).unwrap();
    let is_whole = |part: &str| {
        lark.lines()
            .any(|line| line.starts_with('t') && line.contains(part))
    };
    assert!(is_whole(r"(?:true|false|null)") && terminals <= 14);
}

#[test]
fn a_schema_that_refers_to_itself_keeps_its_strings_whole() {
    println!("{}", to_lark(SCHEMA).unwrap());
    println!("schema: {:?} terminals and leaves", counts(SCHEMA));
    let yes = [
        r#"{"name":"x"}"#,
        "{ \"name\" : \"name\\n\", \"children\": [{\"name\":\"y\"}, {\"name\":\"\"} ]}",
        r#"{"name":"x","extra":-12}"#,
    ];
    let no = [
        r#"{"name":1}"#,
        r#"{"nam":"x"}"#,
        r#"{"name":"x","extra":01}"#,
        "{}",
    ];
    check(SCHEMA, &yes, &no);
}

#[test]
fn other_grammars_that_people_use() {
    println!("{}", to_lark(ARITHMETIC).unwrap());
    println!("arithmetic: {:?} terminals and leaves", counts(ARITHMETIC));
    check(
        ARITHMETIC,
        &["1+2=3\n", "( 1 +(22*3) ) = 4 \n\n\n", "1=1\n2=2\n"],
        &["1+=3\n", "1=1", "(1=1\n"],
    );
    let moves = "1. e4 e5\n2. Nf3 Nc6\n3. O-O exd5=Q+\n";
    check(
        CHESS,
        &[moves],
        &[
            "1. e4 e5\n",
            "1. e9 e5\n2. e4 e5\n",
            "1. e4 e5 \n2. e4 e5\n",
        ],
    );
    check(
        LIST,
        &["- a\n- ß c\n"],
        &["", "- \n", "- a", "- a\u{2028}\n"],
    );
    check("root ::= [a-z]+ \"x\"", &["abx", "xx"], &["x", "ab"]);
    check(
        "root ::= (\"a\" | \"ab\") \"c\" | \"a\" \"bd\"",
        &["abd", "abc", "ac"],
        &["ab", "ad"],
    );
    check("root ::= \"\"", &[""], &["a"]);
    check("root ::= \"a\"*", &["", "aa"], &["b"]);
    check(
        "root ::= root \"a\" | b\nb ::= root | \"b\"",
        &["b", "baa"],
        &["", "a"],
    );
    check(
        "root ::= (a | (a* a*)*)* \"b\"\na ::= \"x\" | root",
        &["b", "xxb", "bxb"],
        &["x", ""],
    );
    check(
        "root ::= \"/#`'\\\"\\\\&|~\\n\\t\\x00\u{1F600}\" [/#^\\]-]",
        &["/#`'\"\\&|~\n\t\0😀/"],
        &[],
    );
}

#[test]
fn tokens_go_through() {
    let lark = to_lark("root ::= \"a\"* <[257]> ( !<[257]> | \"b\" )* <think>").unwrap();
    let mut matcher = matcher(&lark).unwrap();
    assert_eq!(
        matcher
            .try_consume_tokens(&[97, 97, 257, 98, 99, 257])
            .unwrap(),
        6,
        "{lark}"
    );
    assert!(matcher.is_accepting().unwrap());
}

#[test]
fn large_schemas_keep_long_terminals() {
    for count in [10, 100, 300] {
        let mut text = SCHEMA.replace(
            "( children-kv | extra-kv )",
            "( children-kv | extra-kv | many )",
        );
        text += "many ::= m0";
        (1..count).for_each(|index| write!(text, " | m{index}").unwrap());
        for index in 0..count {
            let kind = ["string", "integer", "boolean", "node"][index % 4];
            let next = (index + 1) % count;
            write!(text, "\nm{index} ::= \"\\\"property{index}\\\"\" space \":\" space {kind} (\",\" space m{next})?").unwrap();
        }
        text.push('\n');
        let start = std::time::SystemTime::now();
        let lark = to_lark(&text).unwrap();
        println!("{count}: {:?} {:?}", start.elapsed(), counts(&text));
        assert!(matcher(&lark).is_ok());
    }
}

/// Grammars that are hard to convert or to read, each with a name.
#[expect(clippy::too_many_lines, reason = "it is a table")]
fn hostile() -> Vec<(&'static str, String)> {
    let chain = |count: usize, rule: &dyn Fn(usize) -> String| {
        let mut text = "root ::= r0\n".to_owned();
        (0..count).for_each(|index| text.push_str(&rule(index)));
        text + &format!("r{count} ::= \"z\"\n")
    };
    let words: Vec<String> = (0..5_000)
        .map(|index| format!("\"{}\"", index * 7919))
        .collect();
    let many = |part: &str, end: &str| {
        let count = 60_000 / part.len();
        format!("root ::= {} {end}", part.repeat(count))
    };
    let mut classes = "root ::= \"(\" root \")\"".to_owned();
    (0..3_000).for_each(|index| write!(classes, "|[\\u{:04x}-z]", index + 0x4E00).unwrap());
    vec![
        ("chain", chain(3_500, &|i| format!("r{i} ::= r{}\n", i + 1))),
        (
            "chain of characters",
            chain(3_000, &|i| format!("r{i} ::= \"x\" r{}\n", i + 1)),
        ),
        (
            "chain of choices",
            chain(2_500, &|i| format!("r{i} ::= \"x\" | r{} \"y\"\n", i + 1)),
        ),
        (
            "chain that doubles",
            chain(2_500, &|i| format!("r{i} ::= r{0} r{0}\n", i + 1)),
        ),
        (
            "ring",
            chain(2_400, &|i| format!("r{i} ::= \"x\" | r{} root\n", i + 1)),
        ),
        (
            "ring of stars",
            chain(2_400, &|i| format!("r{i} ::= \"x\"* r{}? root*\n", i + 1)),
        ),
        (
            "5,000 rules",
            (0..5_000)
                .map(|i| format!("{i:x}::={:x}\n", i + 1))
                .collect::<Vec<_>>()
                .concat()
                + "1388::=\"z\"\nroot::=0",
        ),
        ("words", format!("root ::= {}", words.join("|"))),
        (
            "words in a ring",
            format!("root ::= ({}) root?", words.join("|")),
        ),
        (
            "long text",
            many("abcdefghi ", "").replace("root ::= ", "root ::= \"") + "\"",
        ),
        (
            "long text in a ring",
            "root ::= root? \"".to_owned() + &"abcdefghij".repeat(6_000) + "\"",
        ),
        ("many sets", many("[a-z] ", "")),
        ("many sets in a ring", many("[a-z] ", "root?")),
        ("many stars in a ring", many("[a-z]* ", "root?")),
        ("many rules in a ring", many("root ", "| \"a\"")),
        ("many sets at one place", classes.replace("-z]", "]")),
        (
            "repetitions",
            "root ::= ((((([ab]{10}){10}){10}){10}))\n".to_owned(),
        ),
        (
            "repetitions in a ring",
            "root ::= (([ab]{0,100} \"c\"?){100}) root?\n".to_owned(),
        ),
        (
            "stars",
            format!("root ::= {}\"a\"{} \n", "(".repeat(49), "*)+".repeat(49)),
        ),
        (
            "stars of two",
            format!(
                "root ::= {}\"a\"{} \n",
                "(".repeat(32),
                "* \"b\"*)*".repeat(32)
            ),
        ),
        (
            "stars in a ring",
            "root ::= ((root? \"a\"*)* (\"b\"* root?)*)* \"c\"?".to_owned(),
        ),
        (
            "exponential",
            "root ::= ([ab]* \"a\" [ab]{20}) | \"c\" root \"c\"".to_owned(),
        ),
        ("brackets", format!("root ::= {}", "(".repeat(65_000))),
        (
            "deep",
            format!(
                "root ::= {}root{}",
                "(\"a\" | \"b\" ".repeat(99),
                ")".repeat(99)
            ),
        ),
        (
            "deep repetitions",
            format!(
                "root ::= {}root{}",
                "(\"a\" | \"b\" ".repeat(50),
                ")*".repeat(50)
            ),
        ),
        ("many repetitions", many("root{2,3} ", "| \"a\"")),
        (
            "many different repetitions",
            (0..9_000).fold("root ::= \"a\" | root".to_owned(), |text, i| {
                text + &format!("{{1,{}}}", i % 90 + 1)
            }),
        ),
        (
            "different repetitions",
            (0..4_000).fold("root ::= \"a\"".to_owned(), |text, i| {
                text + &format!(" root{{1,{}}}?", i + 2)
            }),
        ),
        ("marks", format!("root ::= \"a\"{}", "?".repeat(65_000))),
        ("names", format!("root ::= {}", "a".repeat(65_000))),
        (
            "many names",
            format!(
                "root ::= {}",
                (0..9_000)
                    .map(|i| format!("r{i}"))
                    .collect::<Vec<_>>()
                    .join(" ")
            ),
        ),
    ]
}

#[test]
fn hostile_grammars_are_converted_or_refused() {
    let read = || {
        for (name, text) in hostile() {
            assert!(text.len() < 66_000, "{name}");
            // llguidance needs a large stack for a long chain, the converter does not.
            let convert = std::thread::Builder::new().stack_size(2 << 20);
            let convert = convert.spawn(move || to_lark(&text)).unwrap();
            if let Ok(lark) = convert.join().unwrap() {
                let symbols = lark.split_whitespace().count();
                assert!(symbols < 70_000, "{name}: {symbols}");
                let matcher = matcher(&lark).unwrap_or_else(|error| panic!("{name}: {error}"));
                for (rule, sample, expected) in [
                    ("chain of characters", "x", false),
                    ("ring", "x", true),
                    ("ring", "xxx", false),
                    ("chain of choices", "xyyyyyy", true),
                    ("words", "7919", true),
                    ("words in a ring", "791915838", true),
                    ("words in a ring", "79191583", false),
                    ("many stars in a ring", "abc", true),
                    ("many sets in a ring", "abc", false),
                    ("many rules in a ring", "a", true),
                    ("many sets at one place", "((\u{4E05}))", true),
                    ("exponential", "ccaaaaaaaaaaaaaaaaaaaaaaaacc", true),
                    ("exponential", "ccaaaaaaaaaaaaaaaaaaaaaaaac", false),
                    ("5,000 rules", "z", true),
                ] {
                    if rule == name {
                        // llguidance may give up, but what it answers must be right.
                        match accepts(&matcher, sample) {
                            Ok(accepted) => assert_eq!(accepted, expected, "{name}"),
                            Err(error) => assert!(error.contains("max is 2000"), "{name}: {error}"),
                        }
                    }
                }
            }
        }
    };
    let thread = std::thread::Builder::new()
        .stack_size(512 << 20)
        .spawn(read)
        .unwrap();
    thread.join().unwrap();
}

#[test]
fn a_grammar_that_llguidance_could_not_hold_is_refused() {
    let parts = (2..4_000).map(|count| format!(" root{{1,{count}}}"));
    let text = parts.fold("root ::= \"a\" |".to_owned(), |text, part| text + &part);
    let error = to_lark(&text).unwrap_err();
    assert!(
        error.starts_with("the grammar is too large: it needs "),
        "{error}"
    );
    let text = "#".repeat(65_537);
    let expected = "the grammar is 65537 bytes long, at most 65536 can be";
    assert_eq!(to_lark(&text).unwrap_err(), expected);
}
