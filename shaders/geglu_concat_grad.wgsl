// Two elements of [.., 2 WIDTH]: the cotangents of an element of the first half and of its partner in the second.
fn unit(i: u32) {
    let at = i / WIDTH * (2u * WIDTH) + i % WIDTH;
    let gate = x_at(at);
    let s = sigmoid_stable(gelu_inner(gate));
    let slope = s + gate * (s * (1.0 - s)) * 1.5957691216057308 * (1.0 + 0.134145 * gate * gate);
    store(at, g_at(i) * x_at(at + WIDTH) * slope);
    store(at + WIDTH, g_at(i) * gate * s);
}
