// The place in w of the matrix of a number, where w holds some: by `table`; PAGES for a number outside, whose row is
// zero. More than PAGES: it is not there, and its rows are left as they are.
fn page_of(number: u32) -> u32 {
    if (number >= EXPERTS) {
        return PAGES;
    }
    return table_at(number);
}
