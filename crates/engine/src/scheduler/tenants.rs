//! Who was served how much: the memory of fair queueing.
//!
//! Each tenant has a virtual counter of served tokens, divided by its weight; whoever waits with the
//! lowest counter is next. Idleness saves nothing up: a tenant that comes back starts no lower than
//! the last one that was served. Two tenants that both wait all the time therefore never differ by
//! more than the tokens of the requests that run at once.
//!
//! # Source     Sheng et al. 2024, "Fairness in Serving Large Language Models", arXiv:2401.00588

use std::collections::BTreeMap;

use forthwith_core::units::TenantId;

/// One token of a tenant of weight 1.
const TOKEN: u64 = 1 << 20;

/// Accounts of tenants that do not wait are given up beyond this number.
const REMEMBERED: usize = 4096;

/// A virtual counter: tokens divided by weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Served(u64);

#[derive(Debug, Default)]
struct Account {
    served: Served,
    waiting: usize,
}

#[derive(Debug)]
pub(crate) struct Tenants {
    weights: BTreeMap<TenantId, u32>,
    accounts: BTreeMap<TenantId, Account>,
    /// The counter of the tenant that was served last; it never goes back.
    now: Served,
}

impl Tenants {
    /// Tenants without a weight have weight 1.
    pub(crate) fn new(weights: &[(TenantId, u32)]) -> Self {
        Self {
            weights: weights.iter().copied().collect(),
            accounts: BTreeMap::new(),
            now: Served::default(),
        }
    }

    /// Counts a request that waits from now on.
    pub(crate) fn arrive(&mut self, tenant: TenantId) {
        if self.accounts.len() >= REMEMBERED {
            self.forget_idle();
        }
        let now = self.now;
        let account = self.accounts.entry(tenant).or_default();
        if account.waiting == 0 {
            account.served = account.served.max(now);
        }
        account.waiting += 1;
    }

    /// Counts a request that waits no longer.
    pub(crate) fn leave(&mut self, tenant: TenantId) {
        if let Some(account) = self.accounts.get_mut(&tenant) {
            account.waiting -= 1;
        }
    }

    /// Notes whose turn it was.
    pub(crate) fn serve(&mut self, tenant: TenantId) {
        self.now = self.now.max(self.served(tenant));
    }

    /// Counts tokens that were computed for a tenant.
    pub(crate) fn charge(&mut self, tenant: TenantId, tokens: usize) {
        let weight = self.weights.get(&tenant).copied().unwrap_or(1).max(1);
        let cost = (tokens as u64).saturating_mul(TOKEN) / u64::from(weight);
        let now = self.now;
        let fresh = || Account {
            served: now,
            waiting: 0,
        };
        let account = self.accounts.entry(tenant).or_insert_with(fresh);
        account.served.0 = account.served.0.saturating_add(cost);
    }

    pub(crate) fn served(&self, tenant: TenantId) -> Served {
        self.accounts
            .get(&tenant)
            .map_or(self.now, |account| account.served)
    }

    /// A debt is kept while it means something; if debtors alone are too many, it is forgiven.
    fn forget_idle(&mut self) {
        let now = self.now;
        self.accounts
            .retain(|_, account| account.waiting > 0 || account.served > now);
        if self.accounts.len() >= REMEMBERED {
            self.accounts.retain(|_, account| account.waiting > 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId::new(1);
    const B: TenantId = TenantId::new(2);

    #[test]
    fn idleness_saves_nothing_up() {
        let mut tenants = Tenants::new(&[]);
        tenants.arrive(A);
        tenants.charge(A, 1000);
        tenants.serve(A);
        tenants.arrive(B);
        assert_eq!(tenants.served(A), tenants.served(B));
        tenants.charge(B, 5);
        tenants.leave(B);
        tenants.arrive(B);
        assert!(tenants.served(B) > tenants.served(A), "debts stay");
    }

    #[test]
    fn a_weight_divides_the_cost() {
        let mut tenants = Tenants::new(&[(A, 4)]);
        tenants.charge(A, 400);
        tenants.charge(B, 100);
        assert_eq!(tenants.served(A), tenants.served(B));
    }

    #[test]
    fn passers_by_are_forgotten() {
        let mut tenants = Tenants::new(&[]);
        tenants.arrive(A);
        for id in 10..20_000 {
            let tenant = TenantId::new(id);
            tenants.arrive(tenant);
            tenants.charge(tenant, 10);
            tenants.leave(tenant);
        }
        assert!(tenants.accounts.len() <= REMEMBERED);
        assert!(tenants.accounts.contains_key(&A), "whoever waits is known");
    }
}
