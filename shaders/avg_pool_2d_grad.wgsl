// A pixel gathers g from every window that has it, divided by the pixels that the window counts.
fn unit(u: u32) {
    let windows = u / (H * W) * (OH * OW);
    let y = u / W % H + PH;
    let x = u % W + PW;
    var sum = 0.0;
    for (var row = first_window(y, KH, SH); row < min(y / SH + 1u, OH); row++) {
        for (var column = first_window(x, KW, SW); column < min(x / SW + 1u, OW); column++) {
            let rows = min(row * SH + KH, H + PH) - max(row * SH, PH);
            let columns = min(column * SW + KW, W + PW) - max(column * SW, PW);
            sum += g_at(windows + row * OW + column) / f32(select(rows * columns, KH * KW, COUNT_PAD == 1u));
        }
    }
    store(u, sum);
}

// The first window that has place p of the padded image.
fn first_window(p: u32, extent: u32, stride: u32) -> u32 {
    return (max(p + 1u, extent) - extent + stride - 1u) / stride;
}
