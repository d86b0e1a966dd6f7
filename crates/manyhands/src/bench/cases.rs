//! The models that are measured.

use std::str::FromStr;

use manyhands_program::{
    Adam, Builder, DType, Init, Optimizer, Pooling, Program, ProgramError, Sgd, Shape, Training,
    Value, Window,
};

/// A model with its batch and optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// 784-512-512-10, batch 128, SGD with momentum.
    Mlp,
    /// 10-64-64-10, batch 32, SGD with momentum.
    Tiny,
    /// Two 3x3 convolutions (32, 64 features), max pooling, two dense layers; 28x28 images, batch 64, Adam.
    Cnn,
    /// A transformer of 2 blocks, width 256, 4 heads, 128 tokens, vocabulary 256; batch 8, Adam.
    Lm,
}

/// Tokens per sequence of [`Case::Lm`].
const N_TOKENS: usize = 128;
/// The vocabulary of [`Case::Lm`].
const VOCABULARY: usize = 256;
/// The width of [`Case::Lm`].
const WIDTH: usize = 256;

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Case, String> {
        let found = Case::ALL.into_iter().find(|case| case.name() == text);
        found.ok_or_else(|| format!("there is no case `{text}`; there are mlp, tiny, cnn and lm"))
    }
}

impl Case {
    /// Every case.
    pub const ALL: [Case; 4] = [Case::Mlp, Case::Tiny, Case::Cnn, Case::Lm];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Case::Mlp => "mlp",
            Case::Tiny => "tiny",
            Case::Cnn => "cnn",
            Case::Lm => "lm",
        }
    }

    /// Samples per batch of one worker.
    pub fn batch(self) -> usize {
        match self {
            Case::Mlp => 128,
            Case::Tiny => 32,
            Case::Cnn => 64,
            Case::Lm => 8,
        }
    }

    /// The learning rate.
    pub fn rate(self) -> f32 {
        match self {
            Case::Mlp | Case::Tiny => 0.01,
            Case::Cnn | Case::Lm => 0.001,
        }
    }

    /// How many different labels there are.
    pub fn n_classes(self) -> usize {
        if self == Case::Lm { VOCABULARY } else { 10 }
    }

    /// The training program for grains of so many samples. Inputs: `x`, `labels`, `rate`, `step`.
    pub fn training_program(self, grain: usize) -> Result<Program, ProgramError> {
        let g = Builder::new(self.name());
        let (logits, n_labels) = match self {
            Case::Mlp => (dense_network(&g, grain, &[784, 512, 512, 10])?, grain),
            Case::Tiny => (dense_network(&g, grain, &[10, 64, 64, 10])?, grain),
            Case::Cnn => (convolutional(&g, grain)?, grain),
            Case::Lm => (language_model(&g, grain)?, grain * N_TOKENS),
        };
        let labels = g.input("labels", DType::I32, [n_labels])?;
        let loss = logits.cross_entropy(&labels)?.sum_all()?;
        let divisor = g.scalar(DType::F32, n_labels as f64)?;
        let optimizer = match self {
            Case::Mlp | Case::Tiny => Optimizer::Sgd(Sgd { momentum: 0.9, ..Sgd::default() }),
            Case::Cnn | Case::Lm => Optimizer::Adam(Adam::default()),
        };
        Training { optimizer, clip: None }.add_step(&g, &loss, &divisor)?;
        Ok(g.finish())
    }
}

/// A dense layer: `[.., inputs]` to `[.., outputs]`, with PyTorch's initial bounds.
fn dense(g: &Builder, x: &Value, outputs: usize) -> Result<Value, ProgramError> {
    let inputs = x.shape().last();
    let bound = 1.0 / (inputs as f64).sqrt();
    let weight = g.weight("weight", [inputs, outputs], Init::Uniform(bound))?;
    let bias = g.weight("bias", [outputs], Init::Uniform(bound))?;
    x.matmul(&weight)? + &bias
}

fn dense_network(g: &Builder, batch: usize, sizes: &[usize]) -> Result<Value, ProgramError> {
    let mut x = g.input("x", DType::F32, [batch, sizes[0]])?;
    for (idx, &size) in sizes[1..].iter().enumerate() {
        x = g.scope(&format!("dense{idx}"), |g| dense(g, &x, size))?;
        if idx + 2 < sizes.len() {
            x = x.relu()?;
        }
    }
    Ok(x)
}

fn convolutional(g: &Builder, batch: usize) -> Result<Value, ProgramError> {
    let mut x = g.input("x", DType::F32, [batch, 28, 28, 1])?;
    for (idx, features) in [32, 64].into_iter().enumerate() {
        x = g.scope(&format!("conv{idx}"), |g| {
            let channels = x.shape().last();
            let bound = 1.0 / (9.0 * channels as f64).sqrt();
            let kernel = g.weight("kernel", [3, 3, channels, features], Init::Uniform(bound))?;
            let bias = g.weight("bias", [features], Init::Uniform(bound))?;
            (x.convolution(&kernel, Window::valid(2))? + &bias)?.relu()
        })?;
    }
    let pooled = x.max_pool(Pooling::tiles(&[2, 2]))?;
    let flat = pooled.reshape([batch, pooled.shape()[1..].iter().product::<usize>()])?;
    let hidden = g.scope("dense0", |g| dense(g, &flat, 128))?.relu()?;
    g.scope("dense1", |g| dense(g, &hidden, 10))
}

fn language_model(g: &Builder, batch: usize) -> Result<Value, ProgramError> {
    let tokens = g.input("x", DType::I32, [batch, N_TOKENS])?;
    let table = g.weight("tokens", [VOCABULARY, WIDTH], Init::Normal(1.0))?;
    let positions = g.weight("positions", [N_TOKENS, WIDTH], Init::Normal(1.0))?;
    let mut x = (table.gather(0, &tokens)? + &positions)?;
    for idx in 0..2 {
        x = g.scope(&format!("block{idx}"), |g| block(g, &x))?;
    }
    let x = g.scope("norm", |g| layer_norm(g, &x))?;
    let flat = x.reshape([batch * N_TOKENS, WIDTH])?;
    let bound = 1.0 / (WIDTH as f64).sqrt();
    flat.matmul(&g.weight("head", [WIDTH, VOCABULARY], Init::Uniform(bound))?)
}

fn block(g: &Builder, x: &Value) -> Result<Value, ProgramError> {
    let normed = g.scope("norm1", |g| layer_norm(g, x))?;
    let qkv = g.scope("qkv", |g| dense(g, &normed, 3 * WIDTH))?.split(2, 3)?;
    let seen = qkv[0].attention(&qkv[1], &qkv[2], 4, true, None)?;
    let x = (x + &g.scope("project", |g| dense(g, &seen, WIDTH))?)?;
    let normed = g.scope("norm2", |g| layer_norm(g, &x))?;
    let hidden = g.scope("expand", |g| dense(g, &normed, 4 * WIDTH))?.gelu()?;
    x + &g.scope("contract", |g| dense(g, &hidden, WIDTH))?
}

fn layer_norm(g: &Builder, x: &Value) -> Result<Value, ProgramError> {
    let size = Shape::from([x.shape().last()]);
    let scale = g.weight("scale", size.clone(), Init::Constant(1.0))?;
    let bias = g.weight("bias", size, Init::Constant(0.0))?;
    x.layer_norm(&scale, &bias, 1e-5)
}
