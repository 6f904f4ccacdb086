package nl

import (
	"encoding/binary"
	"errors"
)

const (
	attributeHeader = 4      // bytes of struct nlattr: the length, the type
	typeMask        = 0x3fff // removes NLA_F_NESTED and NLA_F_NET_BYTEORDER from a type
	nestedFlag      = 0x8000 // NLA_F_NESTED
)

var errTruncated = errors.New("netlink attribute is truncated")

// Walk calls fn with the type and the data of each attribute in b, until fn returns an error. The data is a part of b.
// It allocates nothing, for listings that may have millions of entries; everything else uses Decode.
func Walk(b []byte, fn func(typ uint16, data []byte) error) error {
	for len(b) >= attributeHeader {
		size := int(binary.NativeEndian.Uint16(b))
		if size < attributeHeader || size > len(b) {
			return errTruncated
		}
		typ := binary.NativeEndian.Uint16(b[2:]) & typeMask
		if err := fn(typ, b[attributeHeader:size]); err != nil {
			return err
		}
		b = b[min(aligned(size), len(b)):]
	}
	return nil
}

// Append appends an attribute with data of less than 64 KB to b.
func Append[T ~string | ~[]byte](b []byte, typ uint16, data T) []byte {
	size := attributeHeader + len(data)
	b = binary.NativeEndian.AppendUint16(b, uint16(size))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, data...)
	return append(b, "\x00\x00\x00"[:aligned(size)-size]...)
}

// AppendUint8 appends an attribute with a number.
func AppendUint8(b []byte, typ uint16, n uint8) []byte { return Append(b, typ, []byte{n}) }

// AppendUint16 appends an attribute with a number in the byte order of the network.
func AppendUint16(b []byte, typ, n uint16) []byte {
	return Append(b, typ, binary.BigEndian.AppendUint16(nil, n))
}

// AppendUint32 appends an attribute with a number in the byte order of the network.
func AppendUint32(b []byte, typ uint16, n uint32) []byte {
	return Append(b, typ, binary.BigEndian.AppendUint32(nil, n))
}

// AppendString appends an attribute with text and the zero byte that ends it.
func AppendString(b []byte, typ uint16, text string) []byte {
	begin := len(b)
	b = Append(b, typ, text)
	if size := attributeHeader + len(text) + 1; size <= len(b)-begin {
		binary.NativeEndian.PutUint16(b[begin:], uint16(size)) // the padding has the zero byte
		return b
	}
	binary.NativeEndian.PutUint16(b[begin:], uint16(len(b)-begin+1))
	return append(b, 0, 0, 0, 0)
}

// AppendNested appends an attribute with those that fill appends, of less than 64 KB.
func AppendNested(b []byte, typ uint16, fill func([]byte) []byte) []byte {
	begin := len(b)
	b = binary.NativeEndian.AppendUint16(b, 0)
	b = fill(binary.NativeEndian.AppendUint16(b, typ|nestedFlag))
	binary.NativeEndian.PutUint16(b[begin:], uint16(len(b)-begin))
	return b
}

// aligned returns the size of an attribute with its padding.
func aligned(size int) int { return (size + 3) &^ 3 }
