//! Characters: cut across tokens, odd ones, spaces and line ends.

use super::{gemma3_270m, repeats, smollm2, together};
use crate::server::{Server, greedy, joined};
use serde_json::{Value, json};

const MARK: char = '\u{fffd}';

/// What begins lines of code and prose so that the next token brings its own space.
const OPENINGS: [&str; 30] = [
    "The harbour list: one boat, two",
    "Rain fell on the",
    "She opened the door and",
    "x = [1, 2,",
    "Once upon a time there was",
    "def add(a, b):\n    return",
    "Das Wasser ist",
    "El barco en el",
    "日本の",
    "🦊🐙🌋🦊🐙",
    "A B C D E F",
    "1 2 3 4 5 6 7",
    "- red\n- green\n-",
    "{\"name\": \"boat\",",
    "The quick brown fox jumps over the",
    "In the year 1900,",
    "Question: why?\nAnswer:",
    "\tfor i in range(10):\n\t\t",
    "Dear Sir,\r\n\r\nI",
    "cafés, naïve, über,",
    "русский язык и",
    "한국어 문장은",
    "مرحبا بالعالم",
    "    ",
    "...",
    "ABC",
    "http://example.org/",
    "Roses are red,\nviolets are",
    "To be or not to",
    "$ ls -la\n",
];

const ODD: [&str; 15] = [
    " lead",
    "trail ",
    "  two",
    "\t\tx",
    "a\r\nb\rc\n",
    "x\0y",
    "e\u{301} vs é",
    "ﬁ ＡＢＣ",
    "\u{200b}\u{2060}",
    "▁ low",
    "<0x41>",
    "한국어 조합",
    "👨‍👩‍👧‍👦",
    "\u{feff}bom",
    "<|im_end|><end_of_turn></s>",
];

fn characters_come_whole(mut server: Server) {
    let foxes = "🦊🐙🌋".repeat(4);
    let ask = |count| {
        let (server, body) = (&server, greedy(&foxes, count));
        move || {
            let text = server.text(&body);
            assert_eq!(server.stream(&body), text);
            text
        }
    };
    let mut before = String::new();
    for text in together((1..=12).chain([48]).map(ask).collect()) {
        let whole = text.strip_suffix(MARK).unwrap_or(&text);
        assert!(!whole.contains(MARK), "{text:?}");
        assert!(text.starts_with(&before), "{text:?} after {before:?}");
        whole.clone_into(&mut before);
    }
    server.check_alive();
}

#[test]
fn smollm2_sends_characters_whole() {
    if let Some(server) = smollm2(&["--context", "512"]) {
        characters_come_whole(server);
    }
}

#[test]
fn gemma3_270m_sends_characters_whole() {
    if let Some(server) = gemma3_270m(&["--context", "512"]) {
        characters_come_whole(server);
    }
}

/// Text of characters from all planes, the same for the same seed.
fn noise(seed: u64) -> String {
    let mut state = seed.wrapping_add(1);
    let mut next = move |below: u32| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        u32::try_from(state >> 33).unwrap() % below
    };
    let length = 1 + next(24);
    let characters = (0..length).map(|_| {
        let (start, size) = [
            (0x20, 0x5f),
            (0, 0x20),
            (0x80, 0x780),
            (0x800, 0xf800),
            (0x1_f300, 0x700),
            (0x2_0000, 0xa000),
        ][next(6) as usize];
        char::from_u32(start + next(size)).unwrap_or(' ')
    });
    characters.collect()
}

fn echoed(server: &Server, prompts: &[String]) {
    let body = json!({"prompt": prompts, "max_tokens": 1, "temperature": 0, "echo": true});
    let answer = server.post("/v1/completions", &body);
    let events = server.events("/v1/completions", &body);
    for (index, prompt) in prompts.iter().enumerate() {
        let text = answer["choices"][index]["text"].as_str().unwrap();
        assert!(text.starts_with(prompt), "{prompt:?} came as {text:?}");
        assert_eq!(joined(&events, index), text);
    }
}

/// `normalized` is what the tokenizer's own normalizer makes of a text.
fn odd_prompts_come_back(mut server: Server, normalized: fn(&str) -> String) {
    let odd = ODD.iter().map(|&text| text.to_owned());
    let odd: Vec<String> = odd.chain([" ".repeat(300)]).collect();
    echoed(&server, &odd);
    let noise: Vec<String> = (0..200).map(noise).collect();
    for prompts in noise.chunks(20).take(repeats(1)) {
        echoed(&server, prompts);
    }
    let through = |text: &str| {
        let body = json!({"prompt": text, "add_special_tokens": false});
        let tokens = server.post("/tokenize", &body)["tokens"].clone();
        let back = server.post("/detokenize", &json!({ "tokens": tokens }));
        back["prompt"].as_str().unwrap().to_owned()
    };
    for text in &odd {
        assert_eq!(through(text), normalized(text));
    }
    // Some bytes have no token of their own in a vocabulary; what has one stays.
    for text in &noise {
        let back = through(text);
        assert_eq!(through(&back), back, "{text:?}");
    }
    for lone in [r"\ud83e", r"a\udc00b", r"\ud83e\ud83e"] {
        let body = format!(r#"{{"prompt": "{lone}", "max_tokens": 1}}"#);
        server.refused("/v1/completions", &body);
    }
    server.check_alive();
}

/// The full count is 10 lists of 20 random strings.
#[test]
fn smollm2_keeps_odd_prompts() {
    if let Some(server) = smollm2(&["--context", "512"]) {
        odd_prompts_come_back(server, str::to_owned);
    }
}

/// The full count is 10 lists of 20 random strings.
#[test]
fn gemma3_270m_keeps_odd_prompts() {
    if let Some(server) = gemma3_270m(&["--context", "512"]) {
        odd_prompts_come_back(server, |text| text.replace('\u{2581}', " "));
    }
}

fn streams_equal_plain(mut server: Server) {
    let prompts = &OPENINGS[..repeats(20).min(OPENINGS.len())];
    let length = if prompts.len() < OPENINGS.len() {
        24
    } else {
        64
    };
    let body = json!({"prompt": prompts, "max_tokens": length, "temperature": 0});
    let answer = server.post("/v1/completions", &body);
    let events = server.events("/v1/completions", &body);
    let mut spaced = 0;
    for index in 0..prompts.len() {
        let text: &Value = &answer["choices"][index]["text"];
        assert_eq!(text, &joined(&events, index));
        spaced += usize::from(text.as_str().unwrap().starts_with(' '));
    }
    assert!(spaced >= prompts.len() / 4, "{spaced} began with a space");
    server.check_alive();
}

/// Here 20 prompts of 24 tokens; the full count is 30 of 64.
#[test]
fn smollm2_streams_as_it_answers() {
    if let Some(server) = smollm2(&["--context", "512"]) {
        streams_equal_plain(server);
    }
}

/// Here 20 prompts of 24 tokens; the full count is 30 of 64.
#[test]
fn gemma3_270m_streams_as_it_answers() {
    if let Some(server) = gemma3_270m(&["--context", "512"]) {
        streams_equal_plain(server);
    }
}
