// One element of [.., WIDTH]: gelu of the element of the first half of its row, times that of the second half.
fn unit(i: u32) {
    let gate = x_at(i / WIDTH * (2u * WIDTH) + i % WIDTH);
    store(i, gate * sigmoid_stable(gelu_inner(gate)) * x_at(i / WIDTH * (2u * WIDTH) + i % WIDTH + WIDTH));
}
