// The matrix of a number where all lie in w: itself; PAGES of a number outside, whose row is zero.
fn page_of(number: u32) -> u32 {
    return min(number, PAGES);
}
