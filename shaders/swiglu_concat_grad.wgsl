// Two elements of [.., 2 WIDTH]: the cotangents of an element of the first half and of its partner in the second.
fn unit(i: u32) {
    let at = i / WIDTH * (2u * WIDTH) + i % WIDTH;
    let gate = x_at(at);
    let s = sigmoid_stable(gate);
    store(at, g_at(i) * x_at(at + WIDTH) * (s * (1.0 + gate * (1.0 - s))));
    store(at + WIDTH, g_at(i) * gate * s);
}
