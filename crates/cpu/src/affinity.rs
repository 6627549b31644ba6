//! How many CPUs this process may really use: affinity mask and cgroup quota, not the machine's count.

/// The number of threads worth starting, at least 1.
pub fn usable_cpus() -> usize {
    // The standard library already takes the smaller of the affinity mask and the cgroup quota
    // (v1 and v2), rounding the quota up.
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
