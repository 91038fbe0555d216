// One element of the result [COUNT, INNER]: that of row idx of the table [EXTENT, INNER], or 0 where idx is out of range.
fn unit(i: u32) {
    let at = idx_at(i / INNER);
    store(i, select(0.0, table_at(min(at, EXTENT - 1u) * INNER + i % INNER), at < EXTENT));
}
