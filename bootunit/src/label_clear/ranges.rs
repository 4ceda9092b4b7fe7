//! Byte ranges as sets.
//!
//! Pure. The writes of a step are one set of ranges with another set taken out, so
//! that "never a byte of these" is an operation and not a condition in a loop.

use std::ops::Range;

/// The range widened to whole blocks.
pub fn outward(range: &Range<u64>, block: u64) -> Range<u64> {
    range.start / block * block..range.end.next_multiple_of(block)
}

/// The ranges in order, without overlaps and empty ones, neighbours joined.
pub fn union(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| range.start < range.end);
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

/// What is in `ranges` and in none of `without`, in order.
pub fn subtract(ranges: Vec<Range<u64>>, without: &[Range<u64>]) -> Vec<Range<u64>> {
    let holes = union(without.to_vec());
    let mut left = Vec::new();
    for range in union(ranges) {
        let mut at = range.start;
        for hole in holes.iter().filter(|hole| overlap(hole, &range)) {
            left.push(at..hole.start.max(at));
            at = hole.end;
        }
        left.push(at..range.end.max(at));
    }
    union(left)
}

/// Whether two ranges share a byte.
pub fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Whether `inner` lies in one of `ranges`.
pub fn inside(inner: &Range<u64>, ranges: &[Range<u64>]) -> bool {
    ranges
        .iter()
        .any(|range| range.start <= inner.start && inner.end <= range.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sets(pairs: &[(u64, u64)]) -> Vec<Range<u64>> {
        pairs.iter().map(|(start, end)| *start..*end).collect()
    }

    #[test]
    fn sets_join_and_take_out() {
        assert_eq!(
            union(sets(&[(5, 9), (0, 2), (2, 4), (6, 7), (3, 3)])),
            sets(&[(0, 4), (5, 9)])
        );
        for (from, without, left) in [
            (&[(0, 10)][..], &[][..], &[(0, 10)][..]),
            (&[(0, 10)], &[(0, 10)], &[]),
            (&[(0, 10)], &[(3, 5)], &[(0, 3), (5, 10)]),
            (&[(0, 10)], &[(0, 1), (9, 20)], &[(1, 9)]),
            (&[(4, 6)], &[(0, 5)], &[(5, 6)]),
            (&[(0, 4), (4, 8)], &[(3, 5), (4, 6)], &[(0, 3), (6, 8)]),
            (&[(0, 2), (6, 8)], &[(2, 6)], &[(0, 2), (6, 8)]),
        ] {
            assert_eq!(
                subtract(sets(from), &sets(without)),
                sets(left),
                "{from:?} - {without:?}"
            );
        }
        assert_eq!(outward(&(513..1024), 512), 512..1024);
        assert_eq!(outward(&(1..2), 4096), 0..4096);
        assert!(overlap(&(0..2), &(1..3)) && !overlap(&(0..2), &(2..3)));
        assert!(
            inside(&(1..2), &sets(&[(5, 6), (0, 2)])) && !inside(&(1..3), &sets(&[(0, 2), (2, 4)]))
        );
    }
}
