// A pixel gathers g from every window that has it and whose index names it.
fn unit(u: u32) {
    let windows = u / (H * W) * (OH * OW);
    let own = u % (H * W);
    let y = own / W + PH;
    let x = own % W + PW;
    var sum = 0.0;
    for (var row = first_window(y, KH, SH); row < min(y / SH + 1u, OH); row++) {
        for (var column = first_window(x, KW, SW); column < min(x / SW + 1u, OW); column++) {
            let at = windows + row * OW + column;
            sum += select(0.0, g_at(at), index_at(at) == own);
        }
    }
    store(u, sum);
}

// The first window that has place p of the padded image.
fn first_window(p: u32, extent: u32, stride: u32) -> u32 {
    return (max(p + 1u, extent) - extent + stride - 1u) / stride;
}
