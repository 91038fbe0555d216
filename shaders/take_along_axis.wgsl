// One element of the result [.., COUNT, INNER]: element idx[i] of x [.., EXTENT, INNER] along the middle axis, or 0 where
// idx[i] is out of range.
fn unit(i: u32) {
    let at = idx_at(i);
    let outer = i / (INNER * COUNT);
    store(i, select(0.0, x_at((outer * EXTENT + min(at, EXTENT - 1u)) * INNER + i % INNER), at < EXTENT));
}
