//! The unit's timeout against the deadlines inside: a run that systemd kills while it
//! still waits, by its own rules, would be a power cut that nobody needs.

use std::time::Duration;

use repave_boot::{real_host, steps, zfs};
use repave_systemd::units::boot_limit;

#[test]
fn the_units_timeout_is_above_the_sum_of_the_deadlines() {
    for datasets in [0, 1, 3, 20, 60] {
        let disk = real_host::LOCK_LIMIT * 2 + real_host::PATIENCE + steps::LINK_LIMIT;
        let inside = zfs::time_budget(datasets) + disk + Duration::from_secs(300);
        let unit = boot_limit(datasets);
        assert!(
            unit > inside,
            "{datasets} datasets: {unit:?} is not above {inside:?}"
        );
    }
}
