// The place in w of the matrix of a number, where w holds all: the number itself; PAGES for a number outside, whose
// row is zero.
fn page_of(number: u32) -> u32 {
    return min(number, PAGES);
}
