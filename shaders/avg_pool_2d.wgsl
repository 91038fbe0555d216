// The mean of a window: of its pixels inside the image, or of the zeros around it too.
fn unit(u: u32) {
    let image = u / (OH * OW) * (H * W);
    let top = u / OW % OH * SH;
    let start = u % OW * SW;
    let rows = min(top + KH, H + PH) - max(top, PH);
    let columns = min(start + KW, W + PW) - max(start, PW);
    var sum = 0.0;
    for (var y = max(top, PH); y < min(top + KH, H + PH); y++) {
        for (var x = max(start, PW); x < min(start + KW, W + PW); x++) {
            sum += x_at(image + (y - PH) * W + x - PW);
        }
    }
    store(u, sum / f32(select(rows * columns, KH * KW, COUNT_PAD == 1u)));
}
