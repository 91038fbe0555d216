// One element of zeros [ROWS, WIDTH] with g as row valid - 1; valid is clamped to 1 .. ROWS.
fn unit(i: u32) {
    store(i, select(0.0, g_at(i % WIDTH), i / WIDTH == clamp(valid_at(0u), 1u, ROWS) - 1u));
}
