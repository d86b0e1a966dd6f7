//! Protobuf encoding, as far as events need it: a message is a list of numbered fields.

/// A message that is being written.
#[derive(Clone, Debug, Default)]
pub(super) struct Message {
    bytes: Vec<u8>,
}

/// How the bytes of a field are told apart.
#[derive(Clone, Copy)]
enum Wire {
    Varint = 0,
    Fixed64 = 1,
    Length = 2,
    Fixed32 = 5,
}

impl Message {
    /// A message without fields.
    pub(super) fn new() -> Message {
        Message::default()
    }

    /// Adds an integer.
    pub(super) fn integer(mut self, field: u32, value: i64) -> Message {
        self.key(field, Wire::Varint);
        // Negative numbers are written as their two's complement.
        self.varint(value as u64);
        self
    }

    /// Adds a double.
    pub(super) fn double(mut self, field: u32, value: f64) -> Message {
        self.key(field, Wire::Fixed64);
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Adds a single.
    pub(super) fn float(mut self, field: u32, value: f32) -> Message {
        self.key(field, Wire::Fixed32);
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Adds a string or bytes.
    pub(super) fn bytes(mut self, field: u32, content: &[u8]) -> Message {
        self.key(field, Wire::Length);
        self.varint(content.len() as u64);
        self.bytes.extend_from_slice(content);
        self
    }

    /// Adds a string.
    pub(super) fn text(self, field: u32, content: &str) -> Message {
        self.bytes(field, content.as_bytes())
    }

    /// Adds a message.
    pub(super) fn message(self, field: u32, content: &Message) -> Message {
        self.bytes(field, &content.bytes)
    }

    /// Adds a list of doubles, packed.
    pub(super) fn doubles(self, field: u32, values: &[f64]) -> Message {
        let content: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.bytes(field, &content)
    }

    /// The finished message.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn key(&mut self, field: u32, wire: Wire) {
        self.varint(u64::from(field) << 3 | wire as u64);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of the protobuf documentation.
    #[test]
    fn fields_are_encoded_as_the_protobuf_documentation_says() {
        assert_eq!(Message::new().integer(1, 150).into_bytes(), [0x08, 0x96, 0x01]);
        let inner = Message::new().integer(1, 150);
        let nested = Message::new().message(3, &inner).into_bytes();
        assert_eq!(nested, [0x1a, 0x03, 0x08, 0x96, 0x01]);
        let text = Message::new().text(2, "testing").into_bytes();
        assert_eq!(text, b"\x12\x07testing");
        let minus_two = Message::new().integer(1, -2).into_bytes();
        assert_eq!(minus_two, b"\x08\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01");
        assert_eq!(Message::new().float(2, 1.0).into_bytes(), [0x15, 0, 0, 0x80, 0x3f]);
    }
}
