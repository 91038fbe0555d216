// One element of the cache: of a row from `pos` on the new one, as far as `written()` rows are written; else the old one.
// Rows that would not fit are not written at all.
fn unit(i: u32) {
    let row = i / WIDTH;
    let start = pos_at(0u);
    let inside = start <= ROWS && written() <= ROWS - start;
    if (inside && row >= start && row - start < written()) {
        store(i, new_at((row - start) * WIDTH + i % WIDTH));
    } else {
        store(i, cache_at(i));
    }
}
