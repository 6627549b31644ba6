//! Makes a grammar smaller without changing what it accepts.
//!
//! Rules that can stand for nothing finite are taken out, and so are those that `root` never
//! reaches. Rules that do not lead back to themselves are put in the place of their names, as long
//! as the grammar stays small.

use super::expression::Expr;
use super::parse::{Grammar, Rule};

/// The most nodes of one expression that becomes a single terminal.
pub(super) const MAX_TERMINAL: usize = 20_000;
/// The deepest expression that becomes a terminal. A pattern may be nested 250 deep, and a level
/// here is at most two there.
pub(super) const MAX_TERMINAL_DEPTH: usize = 100;
/// The deepest rule that is put in the place of its name.
const MAX_INLINE_DEPTH: usize = 60;

/// Takes out what no text can come from and what `root` never reaches.
///
/// # Errors     if no text comes from `root`, with the name of the rule that is to blame
pub(super) fn prune(grammar: Grammar) -> Result<Grammar, String> {
    let productive = find_productive(&grammar.rules);
    if !productive[grammar.root] {
        let name = &grammar.rules[find_culprit(&grammar, &productive)].name;
        return Err(format!(
            "no text ever completes the rule `{name}`, which `root` needs"
        ));
    }
    let rules = grammar.rules.into_iter().map(|Rule { name, body }| {
        let body = body.map_rules(&mut |index| {
            if productive[index] {
                Expr::Rule(index)
            } else {
                Expr::NOTHING
            }
        });
        Rule { name, body }
    });
    let rules: Vec<Rule> = rules.collect();
    Ok(keep_reachable(&rules, grammar.root))
}

/// Puts rules in the place of their names as far as that is good for finding long terminals.
pub(super) fn inline(grammar: &Grammar) -> Grammar {
    if let Some(whole) = inline_up_to(grammar, MAX_TERMINAL, 20 * MAX_TERMINAL) {
        let root = &whole.rules[whole.root].body;
        let (size, depth) = root.size_and_depth();
        if root.is_pure() && size <= MAX_TERMINAL && depth <= MAX_TERMINAL_DEPTH {
            return whole;
        }
    }
    [2_000, 200, 20]
        .into_iter()
        .find_map(|limit| inline_up_to(grammar, limit, 5 * MAX_TERMINAL))
        .unwrap_or_else(|| keep_reachable(&grammar.rules, grammar.root))
}

/// Which rules some text comes from.
fn find_productive(rules: &[Rule]) -> Vec<bool> {
    let users = find_users(rules);
    let mut productive = vec![false; rules.len()];
    let mut waiting: Vec<usize> = (0..rules.len()).rev().collect();
    while let Some(index) = waiting.pop() {
        if !productive[index] && is_productive(&rules[index].body, &productive) {
            productive[index] = true;
            waiting.extend(&users[index]);
        }
    }
    productive
}

fn is_productive(expr: &Expr, productive: &[bool]) -> bool {
    match expr {
        Expr::Set(_) | Expr::Token(_) => true,
        Expr::Rule(index) => productive[*index],
        Expr::Seq(parts) => parts.iter().all(|part| is_productive(part, productive)),
        Expr::Alt(parts) => parts.iter().any(|part| is_productive(part, productive)),
        Expr::Repeat(body, least, _) => *least == 0 || is_productive(body, productive),
    }
}

/// For each rule, the rules that mention it.
fn find_users(rules: &[Rule]) -> Vec<Vec<usize>> {
    let mut users = vec![Vec::new(); rules.len()];
    for (user, rule) in rules.iter().enumerate() {
        rule.body.each_rule(&mut |used| {
            if users[used].last() != Some(&user) {
                users[used].push(user);
            }
        });
    }
    users
}

/// The rule on account of which `root` has no text.
fn find_culprit(grammar: &Grammar, productive: &[bool]) -> usize {
    let mut seen = vec![false; grammar.rules.len()];
    let mut culprit = grammar.root;
    loop {
        seen[culprit] = true;
        let mut next = None;
        grammar.rules[culprit].body.each_rule(&mut |index| {
            if !productive[index] && !seen[index] {
                next.get_or_insert(index);
            }
        });
        match next {
            Some(index) => culprit = index,
            None => return culprit,
        }
    }
}

/// The grammar without the rules that `root` does not reach, numbered anew.
fn keep_reachable(rules: &[Rule], root: usize) -> Grammar {
    let mut numbers = vec![None; rules.len()];
    let mut order = vec![root];
    numbers[root] = Some(0);
    let mut next = 0;
    while let Some(&index) = order.get(next) {
        rules[index].body.each_rule(&mut |used| {
            if numbers[used].is_none() {
                numbers[used] = Some(order.len());
                order.push(used);
            }
        });
        next += 1;
    }
    let kept = order.into_iter().map(|index| {
        let Rule { name, body } = &rules[index];
        let renumber = &mut |used: usize| numbers[used].map_or(Expr::NOTHING, Expr::Rule);
        Rule {
            name: name.clone(),
            body: body.map_rules(renumber),
        }
    });
    Grammar {
        rules: kept.collect(),
        root: 0,
    }
}

/// The rules that lead to no rule that leads back to itself, each after those that it mentions.
fn find_acyclic(rules: &[Rule]) -> Vec<usize> {
    let users = find_users(rules);
    let mut missing = vec![0_usize; rules.len()];
    for user in users.iter().flatten() {
        missing[*user] += 1;
    }
    let mut order: Vec<usize> = (0..rules.len())
        .filter(|index| missing[*index] == 0)
        .collect();
    let mut next = 0;
    while let Some(&index) = order.get(next) {
        for &user in &users[index] {
            missing[user] -= 1;
            if missing[user] == 0 {
                order.push(user);
            }
        }
        next += 1;
    }
    order
}

/// Puts acyclic rules of up to `limit` nodes in the place of their names.
///
/// Returns nothing if that makes more than `room` nodes.
fn inline_up_to(grammar: &Grammar, limit: usize, room: usize) -> Option<Grammar> {
    let mut order = find_acyclic(&grammar.rules);
    let mut is_acyclic = vec![false; grammar.rules.len()];
    for &index in &order {
        is_acyclic[index] = true;
    }
    order.extend((0..grammar.rules.len()).filter(|index| !is_acyclic[*index]));
    let mut rules = grammar.rules.clone();
    let mut sizes: Vec<Option<usize>> = vec![None; rules.len()];
    let mut total = 0;
    for index in order {
        let (mut size, _) = rules[index].body.size_and_depth();
        rules[index]
            .body
            .each_rule(&mut |used| size += sizes[used].unwrap_or(0));
        total += size;
        if total > room {
            return None;
        }
        let body = rules[index].body.map_rules(&mut |used| match sizes[used] {
            Some(_) => rules[used].body.clone(),
            None => Expr::Rule(used),
        });
        let (size, depth) = body.size_and_depth();
        if is_acyclic[index] && size <= limit && depth <= MAX_INLINE_DEPTH {
            sizes[index] = Some(size);
        }
        rules[index].body = body;
    }
    Some(keep_reachable(&rules, grammar.root))
}

#[cfg(test)]
mod tests {
    use super::super::parse::parse;
    use super::*;

    fn reduced(text: &str) -> Result<Vec<String>, String> {
        let grammar = inline(&prune(parse(text)?)?);
        Ok(grammar.rules.into_iter().map(|rule| rule.name).collect())
    }

    #[test]
    fn a_grammar_without_any_text_names_the_rule() {
        for (text, name) in [
            ("root ::= \"x\" root", "root"),
            ("root ::= \"x\" a\na ::= \"y\" b | b\nb ::= a a", "b"),
            ("root ::= a\na ::= [\\uD800]", "a"),
        ] {
            let expected = format!("no text ever completes the rule `{name}`, which `root` needs");
            assert_eq!(reduced(text), Err(expected), "{text:?}");
        }
    }

    #[test]
    fn only_rules_that_lead_back_to_themselves_stay() {
        for (text, expected) in [
            ("root ::= a | b\na ::= \"x\" b\nb ::= \"y\"", vec!["root"]),
            (
                "root ::= a \"z\"\na ::= \"(\" a \")\" | b\nb ::= \"y\"",
                vec!["root", "a"],
            ),
            ("root ::= \"x\" | a\na ::= \"y\" a", vec!["root"]),
            ("root ::= \"x\"\na ::= \"y\" a | \"z\"", vec!["root"]),
        ] {
            let expected: Vec<String> = expected.into_iter().map(str::to_owned).collect();
            assert_eq!(reduced(text), Ok(expected), "{text:?}");
        }
    }
}
