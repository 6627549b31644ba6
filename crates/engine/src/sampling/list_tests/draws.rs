//! Frequencies of draws against the papers' definitions.

use super::*;

/// Draws 100,000 tokens and compares their frequencies with the probabilities, by Pearson's statistic:
/// its mean is the number of tokens but one, and it stays within six of its standard deviations. The
/// seed is fixed, so the outcome is too.
fn check_draws(change: impl FnOnce(&mut SamplingParams), expected: &[(u32, f64)]) {
    const DRAWS: usize = 100_000;
    let mut params = SamplingParams {
        seed: 11,
        ..SamplingParams::default()
    };
    change(&mut params);
    let request = request(params, 1);
    let tokens = vec![TokenId::new(0); DRAWS];
    let mut sampler = sampler(FEW.len());
    let mut counts = [0_u32; FEW.len()];
    for place in 1..=DRAWS {
        let choice = sampler.choose(&row(&FEW, &request, &tokens[..place]), &mut Alone);
        counts[choice.unwrap().token.index()] += 1;
    }
    let probability = |id: usize| {
        let listed = expected.iter().find(|(other, _)| *other as usize == id);
        listed.map_or(0.0, |(_, p)| *p)
    };
    let total: f64 = expected.iter().map(|(_, p)| p).sum();
    assert!((total - 1.0).abs() < 1e-9);
    let (mut statistic, mut freedom) = (0.0, -1.0);
    for (id, &count) in counts.iter().enumerate() {
        let mean = probability(id) * DRAWS as f64;
        // So rare tokens would dominate by chance alone.
        if mean < 5.0 {
            assert!(f64::from(count) < 30.0, "{counts:?}");
            continue;
        }
        statistic += (f64::from(count) - mean).powi(2) / mean;
        freedom += 1.0;
    }
    let bound = freedom + 6.0 * (2.0_f64 * freedom).sqrt() + 1.0;
    assert!(statistic < bound, "{statistic} {bound} {counts:?}");
}

/// Probabilities of the tokens that a condition keeps, of the logits at a temperature.
fn kept(temperature: f64, keeps: impl Fn(u32, f64) -> bool) -> Vec<(u32, f64)> {
    let weights = (0_u32..).zip(FEW);
    let weights: Vec<(u32, f64)> = weights
        .map(|(id, logit)| (id, (f64::from(logit) / temperature).exp()))
        .collect();
    let all: f64 = weights.iter().map(|w| w.1).sum();
    let kept = weights.into_iter().map(|(id, w)| (id, w / all));
    let kept: Vec<(u32, f64)> = kept.filter(|&(id, p)| keeps(id, p)).collect();
    let total: f64 = kept.iter().map(|w| w.1).sum();
    kept.into_iter().map(|(id, w)| (id, w / total)).collect()
}

fn entropy(temperature: f64) -> f64 {
    let all = kept(temperature, |_, _| true);
    all.iter().map(|(_, p)| -p * p.ln()).sum()
}

/// Meister et al. 2022, arXiv:2202.00666.
#[test]
fn draws_of_typical_p_follow_the_distribution() {
    // Of all tokens by |surprise − entropy|, the first that hold more than nine tenths.
    let entropy = entropy(1.0);
    let mut run = kept(1.0, |_, _| true);
    run.sort_by(|a, b| {
        let oddness = |p: f64| (-p.ln() - entropy).abs();
        oddness(a.1).total_cmp(&oddness(b.1))
    });
    let mut sum = 0.0;
    let holds = |&(_, p): &(u32, f64)| {
        let before = sum;
        sum += p;
        before <= 0.9
    };
    let ids: Vec<u32> = run.iter().copied().take_while(holds).map(|t| t.0).collect();
    assert!(ids.len() > 2 && ids.len() < FEW.len());
    check_draws(
        |params| params.filters.typical_p = 0.9,
        &kept(1.0, |id, _| ids.contains(&id)),
    );
}

/// Tang et al. 2024, arXiv:2411.07641.
#[test]
fn draws_of_top_n_sigma_follow_the_distribution() {
    let mean = FEW.iter().map(|&l| f64::from(l)).sum::<f64>() / 12.0;
    let variance = FEW
        .iter()
        .map(|&l| (f64::from(l) - mean).powi(2))
        .sum::<f64>()
        / 12.0;
    let least = 3.0 - 0.5 * variance.sqrt();
    let keeps = |id: u32, _| f64::from(FEW[id as usize]) >= least;
    assert_eq!(kept(1.5, keeps).len(), 5);
    let change = |params: &mut SamplingParams| {
        params.temperature = 1.5;
        params.filters.top_n_sigma = 0.5;
    };
    check_draws(change, &kept(1.5, keeps));
}

/// llama.cpp, pull request 9742.
#[test]
fn draws_of_xtc_follow_the_distribution() {
    let plain = kept(1.0, |_, _| true);
    let least = plain
        .iter()
        .map(|t| t.1)
        .filter(|p| *p >= 0.1)
        .fold(1.0, f64::min);
    let dropped = kept(1.0, |_, p| p < least * (1.0 + 1e-9));
    assert_eq!(dropped.len(), FEW.len() - 3);
    let of = |list: &[(u32, f64)], id: u32| list.iter().find(|t| t.0 == id).map_or(0.0, |t| t.1);
    let mixed = (0..12).map(|id| (id, 0.3 * of(&dropped, id) + 0.7 * of(&plain, id)));
    let change = |params: &mut SamplingParams| params.filters.xtc.probability = 0.3;
    check_draws(change, &mixed.collect::<Vec<_>>());
}

/// The dynamic temperature of llama.cpp: between `T − r` and `T + r`, by the share of the entropy.
#[test]
fn draws_of_a_dynamic_temperature_follow_the_distribution() {
    let share = entropy(1.0) / 12.0_f64.ln();
    let temperature = 0.3 + 1.0 * share.powf(1.5);
    let change = |params: &mut SamplingParams| {
        params.temperature = 0.8;
        params.filters.dynamic.range = 0.5;
        params.filters.dynamic.exponent = 1.5;
    };
    check_draws(change, &kept(temperature, |_, _| true));
}

/// Basu et al. 2021, arXiv:2007.14966: the second version with a bound that stays, `eta` being 0.
#[test]
fn draws_of_mirostat_follow_the_distribution() {
    let within = |_, p: f64| -p.log2() <= 3.0;
    assert_eq!(kept(1.0, within).len(), 4);
    let change = |params: &mut SamplingParams| {
        params.filters.mirostat.version = 2;
        params.filters.mirostat.tau = 1.5;
        params.filters.mirostat.eta = 0.0;
    };
    check_draws(change, &kept(1.0, within));
}

/// The fraction of surprise that a text has is what mirostat aims at.
#[test]
fn mirostat_holds_the_mean_surprise_at_its_target() {
    for (version, tau) in [(1, 2.0), (2, 1.5), (2, 2.0)] {
        let mut params = SamplingParams::default();
        params.filters.mirostat.version = version;
        params.filters.mirostat.tau = tau;
        let request = request(params, 1);
        let tokens = vec![TokenId::new(0); 4000];
        let mut sampler = sampler(FEW.len());
        let first = first_bound(request.sampling().filters.mirostat);
        let mut bound = first;
        for place in 1..=tokens.len() {
            let row = Row {
                bound,
                ..row(&FEW, &request, &tokens[..place])
            };
            bound = sampler.choose(&row, &mut Alone).unwrap().bound.unwrap();
        }
        // All errors together moved the bound by no more than this.
        let error = (first - bound).abs() / 0.1 / tokens.len() as f64;
        assert!(error < 0.05, "{version} {tau}: {error}");
    }
}
