// One element of the row valid - 1 of x [ROWS, WIDTH]; valid is clamped to 1 .. ROWS.
fn unit(i: u32) {
    store(i, x_at((clamp(valid_at(0u), 1u, ROWS) - 1u) * WIDTH + i));
}
