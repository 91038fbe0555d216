// One element as f32.
fn unit(i: u32) {
    store(i, f32(x_at(i)));
}
