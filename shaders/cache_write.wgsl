// One element of the cache: of a row from `pos` on the new one, as far as `written()` rows are written; else the old one.
// Rows that would not fit are not written at all.
fn unit(i: u32) {
    let rows = ROWS / CACHES;
    let own = i / WIDTH / rows;
    let row = i / WIDTH % rows;
    let start = pos_at(own);
    let inside = start <= rows && written() <= rows - start;
    if (inside && row >= start && row - start < written()) {
        store(i, new_at((own * (NEW / CACHES) + row - start) * WIDTH + i % WIDTH));
    } else {
        store(i, cache_at(i));
    }
}
