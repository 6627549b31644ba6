//! Forms over a vocabulary of bytes and a few longer tokens.

use std::sync::Arc;

use forthwith_core::constraint::{Constraint, Next, TokenConstraint};
use forthwith_core::units::TokenId;
use serde_json::{Value, json};

use super::*;
use crate::tokenizer::Tokenizer;
use crate::tokenizer::testing::byte_level;
use crate::tools::{ReasoningMarks, ToolFormat, ToolSpec};

const END: TokenId = TokenId::new(1);

fn tokenizer() -> Tokenizer {
    let merges = ["t r", "tr u", "tru e", "\" :", "f a", "fa l", "1 2", "Ġ t"];
    byte_level(&["<s>", "<end>"], &merges)
}

fn compiler() -> FormCompiler {
    FormCompiler::new(Arc::new(tokenizer()), FormLimits::default())
}

/// What became of a text.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// It may end here, and may go on.
    MayEnd,
    /// It must go on.
    Open,
    /// It is complete: nothing may follow.
    Complete,
    /// It is not allowed from this byte on.
    Refused(usize),
}

use Outcome::{Complete, MayEnd, Open, Refused};

fn allowed(constraint: &mut dyn TokenConstraint, vocab: usize) -> Vec<bool> {
    let mut mask = vec![u64::MAX; vocab.div_ceil(64)];
    constraint.restrict(&mut mask).unwrap();
    let bit = |id: usize| mask[id / 64] >> (id % 64) & 1 == 1;
    (0..vocab).map(bit).collect()
}

/// Follows a text, always by the longest token that is allowed.
fn follow(form: &dyn Constraint, text: &str) -> Outcome {
    let mut constraint = form.start().unwrap();
    let tokenizer = tokenizer();
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let index = text.len() - rest.len();
        let mask = allowed(constraint.as_mut(), tokenizer.vocab_size());
        let tokens = (0..)
            .map(TokenId::new)
            .zip(&mask)
            .filter(|(_, allowed)| **allowed);
        let tokens = tokens.filter(|&(id, _)| {
            let bytes = tokenizer.token_bytes(id);
            !tokenizer.is_hidden(id) && !bytes.is_empty() && rest.starts_with(bytes)
        });
        let longest = tokens.max_by_key(|&(id, _)| tokenizer.token_bytes(id).len());
        let Some((token, _)) = longest else {
            return Refused(index);
        };
        rest = &rest[tokenizer.token_bytes(token).len()..];
        if constraint.advance(token).unwrap() == Next::Complete {
            return if rest.is_empty() {
                Complete
            } else {
                Refused(text.len() - rest.len())
            };
        }
    }
    if allowed(constraint.as_mut(), tokenizer.vocab_size())[END.index()] {
        MayEnd
    } else {
        Open
    }
}

fn compiled(form: &Form) -> Arc<dyn Constraint> {
    compiler().compile(form).unwrap()
}

fn of_schema(schema: Value, text: &str) -> Outcome {
    follow(&*compiled(&Form::JsonSchema(schema)), text)
}

fn refusal(form: &Form) -> String {
    match compiler().compile(form) {
        Ok(_) => panic!("{form:?} is taken"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_json_object_is_any_object_and_nothing_else() {
    let form = compiled(&Form::JsonObject);
    for text in [
        "{}",
        r#"{"a": [1, 2.5e3, "x\n", null, {"b": true}]}"#,
        "{ }",
    ] {
        assert_eq!(follow(&*form, text), Complete, "{text}");
    }
    assert_eq!(follow(&*form, "[1]"), Refused(0));
    assert_eq!(follow(&*form, r#"{"a""#), Open);
    assert_eq!(follow(&*form, r#"{"a",}"#), Refused(4));
    // White space has a bound.
    assert_eq!(follow(&*form, "{\n          "), Open);
    assert_eq!(follow(&*form, "{\n\n"), Refused(2));
    assert_eq!(follow(&*form, "{  "), Refused(2));
}

#[test]
fn a_schema_is_followed_to_the_letter() {
    let schema = json!({
        "type": "object",
        "properties": {
            "zip": { "type": "string", "pattern": "^[0-9]{3}$" },
            "age": { "type": "integer", "minimum": 18, "maximum": 99 },
            "kind": { "enum": ["a", "b"] }
        },
        "required": ["zip", "age"],
        "additionalProperties": false
    });
    for (text, outcome) in [
        (r#"{"zip": "123", "age": 20}"#, Complete),
        (r#"{"zip":"123","age":99,"kind":"b"}"#, Complete),
        (r#"{"zip":"1234"#, Refused(11)),
        (r#"{"zip":"123","age":17"#, Refused(20)),
        (r#"{"zip":"123","kind":"b"#, Refused(14)),
        // In the order of the schema.
        (r#"{"age":"#, Refused(2)),
        (r#"{"zip":"123"}"#, Refused(12)),
    ] {
        assert_eq!(of_schema(schema.clone(), text), outcome, "{text}");
    }
}

#[test]
fn references_and_recursion_are_followed() {
    let schema = json!({
        "$defs": { "node": {
            "type": "object",
            "properties": { "next": { "anyOf": [{ "$ref": "#/$defs/node" }, { "type": "null" }] } },
            "required": ["next"],
            "additionalProperties": false
        } },
        "$ref": "#/$defs/node"
    });
    assert_eq!(
        of_schema(schema.clone(), r#"{"next":{"next":null}}"#),
        Complete
    );
    assert_eq!(of_schema(schema, r#"{"next":{"next":1"#), Refused(16));
}

#[test]
fn what_would_be_passed_over_in_a_schema_is_refused_by_name() {
    for (schema, name) in [
        (json!({ "propertis": {} }), "propertis"),
        (
            json!({ "type": "array", "uniqueItems": true }),
            "uniqueItems",
        ),
        (json!({ "not": { "type": "null" } }), "`not`"),
        (json!({ "if": {} }), "`if`"),
        (json!({ "type": "string", "format": "phone" }), "phone"),
        (json!({ "x-guidance": { "lenient": true } }), "x-guidance"),
        (
            json!({ "items": { "nullable": true } }),
            "`nullable` at #/items",
        ),
        (
            json!({ "properties": { "a": { "dependentRequired": {} } } }),
            "#/properties/a",
        ),
        (json!({ "properties": { "a": 3 } }), "#/properties/a"),
        (
            json!({ "$schema": "http://json-schema.org/draft-04/schema#", "const": 1 }),
            "$schema",
        ),
        (
            json!({ "$schema": "http://json-schema.org/draft-07/schema#", "prefixItems": [] }),
            "prefixItems",
        ),
        (
            json!({ "$ref": "http://example.com/schema" }),
            "example.com",
        ),
        (json!({ "$ref": "#/$defs/none" }), "none"),
        (
            json!({ "type": "integer", "minimum": 3, "maximum": 2 }),
            "minimum",
        ),
        (json!(false), "nothing"),
        (json!([]), "neither"),
        (json!({ "type": "strin" }), "strin"),
    ] {
        let message = refusal(&Form::JsonSchema(schema));
        assert!(message.contains(name), "{name}: {message}");
        assert!(!message.contains('\n') && message.len() < 280, "{message}");
    }
}

#[test]
fn an_expression_matches_the_whole_answer() {
    for regex in ["[ab]+c?", "^[ab]+c?$", "^[ab]+c?", "[ab]+c?$"] {
        let form = compiled(&Form::Regex(regex.to_owned()));
        assert_eq!(follow(&*form, "abba"), MayEnd);
        assert_eq!(follow(&*form, "abc"), Complete);
        assert_eq!(follow(&*form, "c"), Refused(0));
        assert_eq!(follow(&*form, ""), Open);
    }
    let form = compiled(&Form::Regex(r"a/\$".to_owned()));
    assert_eq!(follow(&*form, "a/$"), Complete);
    for (regex, word) in [
        (r"a\bb", "ook"),
        ("(?=a)b", "look"),
        ("(a", "unclosed"),
        ("", "empty"),
        ("[a-z", "unclosed"),
    ] {
        let message = refusal(&Form::Regex(regex.to_owned()));
        assert!(message.contains(word), "{regex}: {message}");
    }
    let deep = "(".repeat(200) + &")".repeat(200);
    assert!(refusal(&Form::Regex(deep)).contains("nest"));
    assert!(refusal(&Form::Regex("a".repeat(70_000))).contains("bytes"));
}

#[test]
fn one_of_some_texts_is_chosen_whatever_their_signs() {
    let texts = ["yes", "yes, sir", "no/[a]*", "ä"].map(str::to_owned);
    let form = compiled(&Form::Choice(texts.to_vec()));
    assert_eq!(follow(&*form, "yes"), MayEnd);
    assert_eq!(follow(&*form, "yes, sir"), Complete);
    assert_eq!(follow(&*form, "no/[a]*"), Complete);
    assert_eq!(follow(&*form, "ä"), Complete);
    assert_eq!(follow(&*form, "maybe"), Refused(0));
    assert!(refusal(&Form::Choice(vec![])).contains("0 texts"));
    assert!(refusal(&Form::Choice(vec![String::new()])).contains("empty"));
}

#[test]
fn a_lark_grammar_is_followed() {
    let text = r#"
start: sum
sum: number ("+" number)*
number: /[0-9]+/ | "(" sum ")"
"#;
    let form = compiled(&Form::Lark(text.to_owned()));
    assert_eq!(follow(&*form, "1+(2+34)"), MayEnd);
    assert_eq!(follow(&*form, "1+)"), Refused(2));
    for (text, word) in [
        ("start: other", "other"),
        ("start: \"a", "start"),
        ("nothing here", "Expected"),
        ("start[temperature=0.5]: /a/", "temperature"),
        ("start: x\nx[lazy, stop = \"b\"]: /a/", "`stop`"),
    ] {
        let message = refusal(&Form::Lark(text.to_owned()));
        assert!(message.contains(word), "{text}: {message}");
    }
}

#[test]
fn answers_under_one_form_do_not_disturb_each_other() {
    let form = compiled(&Form::JsonObject);
    let mut one = form.start().unwrap();
    for byte in br#"{"a"#.map(u32::from) {
        one.advance(TokenId::new(2 + byte)).unwrap();
    }
    assert_eq!(follow(&*form, "{}"), Complete);
    let mut mask = vec![u64::MAX; 5];
    one.restrict(&mut mask).unwrap();
    assert_eq!(mask[0] >> END.index() & 1, 0);
}

#[test]
fn a_form_that_was_asked_for_lately_is_at_hand() {
    let compiler = compiler();
    let one = compiler.compile(&Form::JsonObject).unwrap();
    let two = compiler.compile(&Form::JsonObject).unwrap();
    assert!(Arc::ptr_eq(&one, &two));
}

#[test]
fn chains_and_crowds_of_rules_end_no_process() {
    use std::fmt::Write as _;
    let mut lark = String::from("start: r0\n");
    for rule in 0..3000 {
        writeln!(lark, "r{rule}: \"a\" r{}", rule + 1).unwrap();
    }
    lark.push_str("r3000: \"b\"\n");
    let _ = compiler().compile(&Form::Lark(lark));
    let mut defs = serde_json::Map::new();
    for rule in 0..3000 {
        let next =
            json!({ "type": "array", "items": { "$ref": format!("#/$defs/r{}", rule + 1) } });
        defs.insert(format!("r{rule}"), next);
    }
    defs.insert("r3000".to_owned(), json!({ "type": "null" }));
    let _ = compiler().compile(&Form::JsonSchema(
        json!({ "$defs": defs, "$ref": "#/$defs/r0" }),
    ));
}

#[test]
fn words_are_followed_with_the_spaces_between_them() {
    let words = ["<unk>", "the", "gpu", "reads"].map(str::to_owned);
    let unknown = TokenId::new(0);
    let tokenizer = Tokenizer::words(&words, unknown, vec![unknown], vec![unknown]).unwrap();
    let compiler = FormCompiler::new(Arc::new(tokenizer), FormLimits::default());
    let choice = Form::Choice(vec![" gpu reads".to_owned(), " the gpu".to_owned()]);
    let mut form = compiler.compile(&choice).unwrap().start().unwrap();
    assert_eq!(allowed(form.as_mut(), 4), [false, true, true, false]);
    assert_eq!(form.advance(TokenId::new(2)), Ok(Next::Open));
    assert_eq!(allowed(form.as_mut(), 4), [false, false, false, true]);
    assert_eq!(form.advance(TokenId::new(3)), Ok(Next::Complete));
}

fn lamp() -> ToolSpec {
    ToolSpec {
        name: "lamp".to_owned(),
        parameters: json!({
            "type": "object",
            "properties": { "on": { "$ref": "#/$defs/switch" } },
            "required": ["on"],
            "additionalProperties": false,
            "$defs": { "switch": { "type": "boolean" } }
        }),
        declaration: json!({}),
    }
}

fn fan() -> ToolSpec {
    ToolSpec {
        name: "fan".to_owned(),
        parameters: ToolSpec::no_parameters(),
        declaration: json!({}),
    }
}

#[test]
fn calls_must_be_of_declared_tools_with_valid_arguments() {
    let format = ToolFormat::of("");
    let one = compiler()
        .calls(&format, &[lamp(), fan()], (true, false))
        .unwrap();
    let call = |name: &str, arguments: &str| format.worded([(name, arguments)].into_iter());
    assert_eq!(follow(&*one, &call("lamp", r#"{"on": true}"#)), Complete);
    assert_eq!(follow(&*one, &call("fan", "{}")), Complete);
    let lead = "<tool_call>\n{\"name\": \"".len();
    assert_eq!(follow(&*one, &call("oven", "{}")), Refused(lead));
    assert!(matches!(follow(&*one, &call("lamp", "{}")), Refused(_)));
    assert_eq!(follow(&*one, "Hello"), Refused(0));
    let several = compiler()
        .calls(&format, &[lamp(), fan()], (true, true))
        .unwrap();
    let two = format.worded([("fan", "{}"), ("lamp", r#"{"on":false}"#)].into_iter());
    assert_eq!(follow(&*several, &two), MayEnd);
    assert!(matches!(follow(&*one, &two), Refused(_)));
}

#[test]
fn free_text_may_come_before_calls_but_calls_are_held_to_their_form() {
    let format = ToolFormat::of("");
    let calls = compiler().calls(&format, &[fan()], (false, false)).unwrap();
    let call = format.worded([("fan", "{}")].into_iter());
    assert_eq!(follow(&*calls, "Just text <tool"), MayEnd);
    assert_eq!(follow(&*calls, &format!("Well:\n{call}")), Complete);
    assert_eq!(follow(&*calls, "<tool_call>x"), Refused(11));
    let llama = ToolFormat::of("<|python_tag|>");
    let calls = compiler().calls(&llama, &[fan()], (false, false)).unwrap();
    assert_eq!(
        follow(&*calls, r#"{"name": "fan", "parameters": {}}"#),
        Complete
    );
    assert_eq!(follow(&*calls, r#"{"name": "oven"#), Refused(10));
    assert_eq!(follow(&*calls, r#"So {"name": "oven"#), MayEnd);
}

#[test]
fn a_form_waits_for_the_end_of_the_reasoning() {
    const MARKS: ReasoningMarks = ReasoningMarks {
        open: "<think>",
        close: "</think>",
    };
    let tokenizer = Arc::new(byte_level(&["<s>", "<end>", "<think>"], &["> Ċ"]));
    let compiler = FormCompiler::new(tokenizer, FormLimits::default());
    let form = compiler
        .compile(&Form::Choice(vec!["yes".to_owned()]))
        .unwrap();
    let begun = compiler
        .reasoning(MARKS, true, None, Some(form.clone()))
        .unwrap();
    let text = |constraint: &mut dyn TokenConstraint, text: &str| {
        for byte in text.bytes() {
            let token = TokenId::new(3 + u32::from(byte));
            assert!(
                allowed(constraint, 260)[token.index()],
                "{} of {text}",
                char::from(byte)
            );
            constraint.advance(token).unwrap();
        }
    };
    let letter = |letter: u8| 3 + usize::from(letter);
    let mut answer = begun.start().unwrap();
    text(answer.as_mut(), "so no</think");
    let mask = allowed(answer.as_mut(), 260);
    // The end waits for the form, and a token that would go beyond the marker is left out.
    assert!(!mask[END.index()] && !mask[259] && mask[letter(b'>')] && mask[letter(b'x')]);
    text(answer.as_mut(), ">\n\n");
    let mask = allowed(answer.as_mut(), 260);
    assert!(mask[letter(b'y')] && mask[letter(b'\n')] && !mask[letter(b'n')]);
    text(answer.as_mut(), "yes");
    // Nothing forces a model to reason.
    let free = compiler.reasoning(MARKS, false, None, Some(form)).unwrap();
    let mut answer = free.start().unwrap();
    let mask = allowed(answer.as_mut(), 260);
    assert!(mask[2] && mask[letter(b'y')] && !mask[letter(b'n')]);
    text(answer.as_mut(), "yes");
    let mut answer = free.start().unwrap();
    answer.advance(TokenId::new(2)).unwrap();
    text(answer.as_mut(), "no</think>yes");
    // A budget ends it.
    let short = compiler.reasoning(MARKS, true, Some(3), None).unwrap();
    let mut answer = short.start().unwrap();
    text(answer.as_mut(), "so");
    text(answer.as_mut(), "<");
    let mask = allowed(answer.as_mut(), 260);
    assert_eq!(mask.iter().filter(|&&bit| bit).count(), 1);
    text(answer.as_mut(), "/think>");
    assert!(allowed(answer.as_mut(), 260)[END.index()]);
}

#[test]
fn a_gbnf_grammar_is_followed() {
    let text =
        "root ::= sum\nsum ::= number (\"+\" number)*\nnumber ::= [0-9]+ | \"(\" sum \")\"\n";
    let form = compiled(&Form::Gbnf(text.to_owned()));
    assert_eq!(follow(&*form, "1+(2+34)"), MayEnd);
    assert_eq!(follow(&*form, "1+)"), Refused(2));
    // There is no lexer that could take the last letter away.
    let form = compiled(&Form::Gbnf("root ::= [a-z]+ \"x\"".to_owned()));
    assert_eq!(follow(&*form, "abx"), MayEnd);
    let message = refusal(&Form::Gbnf("root ::= other".to_owned()));
    assert!(message.contains("other"), "{message}");
}
