// A copy of one element.
fn unit(i: u32) {
    store(i, x_at(i));
}
