use proptest::prelude::*;

use super::*;

/// The last bucket.
const LAST: u32 = 24 * 128 - 1;

fn any_row() -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![
        6 => -40.0_f32..12.0,
        3 => (-6_i8..6).prop_map(f32::from),
        1 => Just(f32::NEG_INFINITY),
    ];
    prop::collection::vec(logit, 1..1000).prop_map(|mut row| {
        row[0] = 3.0;
        row
    })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between 0 and 2^40"
)]
fn whole(number: f64) -> u64 {
    number.round_ties_even() as u64
}

fn maxima_of(row: &[f32]) -> Vec<f32> {
    let largest = |stretch: &[f32]| stretch.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.chunks(STRETCH).map(largest).collect()
}

proptest! {
    #[test]
    fn passes_say_what_they_promise(
        row in any_row(),
        temperature in 1e-5_f32..2.0,
        least in (-20.0_f32..3.0, 0.0_f32..0.2),
        bucket in 0..LAST,
    ) {
        let maxima = maxima_of(&row);
        let mut told = vec![0.0; maxima.len()];
        prop_assert!(PlainPasses.maxima(&row, &mut told));
        prop_assert_eq!(&told, &maxima);
        let max = maxima.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weighing = Weighing {
            least_logit: least.0,
            least_share: least.1,
            ..Weighing::new(max, temperature)
        };
        let stretches = Stretches { logits: &row, maxima: &maxima };

        let weigh = |logit: f32| {
            let share = exp((logit - max) * (1.0 / temperature));
            let counts = logit >= least.0 && share >= least.1;
            if counts { whole(f64::from(share) * 2.0_f64.powi(40)) } else { 0 }
        };
        let mut masses = vec![1; maxima.len()];
        PlainPasses.masses(stretches, &weighing, &mut masses);
        let expected: Vec<u64> = row.chunks(STRETCH)
            .map(|stretch| stretch.iter().map(|&logit| weigh(logit)).sum())
            .collect();
        prop_assert_eq!(masses, expected);

        let mut sums = table();
        PlainPasses.histogram(stretches, &weighing, &mut sums);
        let mut expected = table();
        for &logit in &row {
            expected[weighing.bucket(logit) as usize] += weigh(logit);
        }
        prop_assert_eq!(sums, expected);

        for bucket in [bucket, 0, LAST, weighing.bucket(row[row.len() / 2])] {
            let mut found = Vec::new();
            PlainPasses.in_bucket(stretches, &weighing, bucket, &mut |at| found.push(at));
            let expected: Vec<usize> =
                (0..row.len()).filter(|&at| weighing.bucket(row[at]) == bucket).collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn buckets_keep_the_order(row in any_row(), temperature in 1e-5_f32..2.0) {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weighing = Weighing::new(max, temperature);
        let mut row = row;
        row.sort_by(|a, b| b.total_cmp(a));
        prop_assert!(row.is_sorted_by_key(|&logit| weighing.bucket(logit)));
        prop_assert_eq!(weighing.bucket(max), 0);
    }
}

#[test]
fn weights_have_their_ends() {
    assert_eq!((fixed(0.0), fixed(1.0), fixed(0.5)), (0, ONE, ONE / 2));
    let weighing = Weighing::new(5.0, 1.0);
    assert_eq!(weighing.weight(5.0), ONE);
    assert_eq!(weighing.weight(f32::NEG_INFINITY), 0);
    assert_eq!(weighing.weight(5.0 - WEIGHTLESS), 0);
    assert!(weighing.is_weightless(f32::NEG_INFINITY));
    assert_eq!(weighing.bucket(f32::NEG_INFINITY), LAST);
}

#[test]
fn damaged_logits_are_noticed_anywhere() {
    for length in [1, 16, 17, 256, 300] {
        for at in [0, length / 2, length - 1] {
            for value in [f32::NAN, f32::INFINITY] {
                let mut row = vec![0.0; length];
                row[at] = value;
                assert!(!PlainPasses.maxima(&row, &mut vec![0.0; length.div_ceil(STRETCH)]));
            }
        }
    }
}
