// One element, copied.
fn unit(i: u32) {
    store(i, x_at(i));
}
