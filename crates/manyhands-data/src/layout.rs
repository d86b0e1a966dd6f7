//! How a record is laid out: the fields of the columns one after the other, each in the type it came in.

/// The type of a stored number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scalar {
    U8,
    /// Numbers, or numbers that stand for values.
    I32,
    F32,
    F64,
}

impl Scalar {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::I32 | Self::F32 => 4,
            Self::F64 => 8,
        }
    }
}

/// A field of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) offset: usize,
    pub(crate) scalar: Scalar,
    /// How many numbers it has.
    pub(crate) n: usize,
}

impl Field {
    pub(crate) fn bytes(&self) -> usize {
        self.scalar.bytes() * self.n
    }
}

/// The fields of a record: those of the columns in the order of the encoding, then that of the label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) columns: Vec<Field>,
    pub(crate) label: Option<Field>,
    pub(crate) width: usize,
}

impl Layout {
    pub(crate) fn new(columns: &[(Scalar, usize)], label: Option<Scalar>) -> Self {
        let mut width = 0;
        let mut place = |(scalar, n): (Scalar, usize)| {
            let field = Field { offset: width, scalar, n };
            width += field.bytes();
            field
        };
        let columns = columns.iter().map(|&column| place(column)).collect();
        let label = label.map(|scalar| place((scalar, 1)));
        Self { columns, label, width }
    }
}
