//! Against the samplers of llama.cpp.

use super::*;

/// The settings that a line of the fixture names.
fn settings(stages: &str) -> SamplingParams {
    let mut params = SamplingParams::default();
    let stages = stages.split(", ").map(|stage| set(&mut params, stage));
    let order = stages.collect();
    params.filters.order = Some(order);
    params
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the fixture has whole numbers there"
)]
fn set(params: &mut SamplingParams, stage: &str) -> Stage {
    let (name, numbers) = stage.split_once(' ').unwrap();
    let mut numbers = numbers.split(' ').map(|n| n.parse::<f32>().unwrap());
    let mut next = || numbers.next().unwrap();
    let window = |number: f32| (number >= 0.0).then_some(number as u32);
    let filters = &mut params.filters;
    match name {
        "temperature" => params.temperature = next(),
        "dynatemp" => {
            params.temperature = next();
            filters.dynamic.range = next();
            filters.dynamic.exponent = next();
        }
        "top_k" => params.top_k = next() as u32,
        "top_p" => params.top_p = next(),
        "min_p" => params.min_p = next(),
        "typical_p" => filters.typical_p = next(),
        "top_n_sigma" => filters.top_n_sigma = next(),
        "xtc" => {
            filters.xtc.probability = next();
            filters.xtc.threshold = next();
        }
        "repeat" => {
            filters.repeat.penalty = next();
            filters.repeat.last = window(next());
        }
        "dry" => {
            filters.dry.multiplier = next();
            filters.dry.base = next();
            filters.dry.allowed_length = next() as u32;
            filters.dry.last = window(next());
        }
        _ => panic!("{stage}"),
    }
    match name {
        "dynatemp" => Stage::Temperature,
        "repeat" => Stage::Penalties,
        "typical_p" => Stage::TypicalP,
        name => {
            let mut all = Stage::USUAL.into_iter();
            all.find(|stage| stage.name() == name).unwrap()
        }
    }
}

/// The lines of the fixture that are of mirostat, or those that are not.
fn fixture(mirostat: bool) -> impl Iterator<Item = (&'static str, Vec<(u32, f64)>)> {
    let lines = include_str!("../../../../../fixtures/sampling/answers.txt").lines();
    let lines = lines.filter(move |line| line.starts_with("mirostat") == mirostat);
    lines.map(|line| {
        let (stages, pairs) = line.split_once(" | ").unwrap();
        let pairs = pairs.split(' ').map(|pair| {
            let (id, number) = pair.split_once(':').unwrap();
            (id.parse().unwrap(), number.parse().unwrap())
        });
        (stages, pairs.collect())
    })
}

#[test]
fn stages_leave_what_llama_cpp_leaves() {
    let text = ids(&[0, 1, 2, 3, 0, 1, 2, 4, 0, 1, 2]);
    let mut count = 0;
    for (stages, expected) in fixture(false) {
        let request = request(settings(stages), 1);
        let left = left(&row(&FEW, &request, &text));
        assert!(
            close(&left, &expected, 2e-6),
            "{stages}: {left:?} {expected:?}"
        );
        count += 1;
    }
    assert_eq!(count, 29);
}

#[test]
fn mirostat_keeps_as_many_tokens_as_that_of_llama_cpp() {
    let many = (0..150_u16).map(|k| 8.0 - f32::from(37 * k % 11) / 32.0 - f32::from(k) / 16.0);
    let many: Vec<f32> = many.collect();
    let mut count = 0;
    for (stages, draws) in fixture(true) {
        let numbers: Vec<f32> = stages
            .split(' ')
            .skip(1)
            .map(|n| n.parse().unwrap())
            .collect();
        let mut params = SamplingParams::default();
        params.filters.mirostat.version = if numbers[0] < 2.0 { 1 } else { 2 };
        params.filters.mirostat.tau = numbers[1];
        params.filters.mirostat.eta = numbers[2];
        let logits = if numbers[0] < 2.0 { &many[..] } else { &FEW };
        let settings = params.filters.mirostat;
        let mut bound = first_bound(settings);
        for (kept, token) in draws {
            let mut candidates = Vec::new();
            let mut list = List::of_row(logits, &mut candidates);
            mirostat::shorten(&mut list, settings, (bound, logits.len()), &mut Vec::new());
            let length = u32::try_from(list.len()).unwrap();
            assert_eq!(length, kept, "{stages}");
            let shares = list.weigh();
            let drawn = list.candidates().iter().find(|c| f64::from(c.id) == token);
            bound = mirostat::next_bound(settings, bound, &list, (drawn.unwrap(), &shares));
            count += 1;
        }
    }
    assert_eq!(count, 48);
}
