package manifest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// byteOrderMark may begin a file, and each of several files that were joined.
const byteOrderMark = "\ufeff"

// toUTF8 returns the text of a file without a byte order mark. Like kubectl it
// takes UTF-8, UTF-16 with a byte order mark, and text with invalid bytes, which
// it replaces by U+FFFD and reports in odd. Any other encoding is an error.
func toUTF8(data []byte) (text []byte, odd, err error) {
	start := [4]byte{1, 1, 1, 1} // where there is no data
	copy(start[:], data)
	switch {
	case start == [4]byte{0xff, 0xfe, 0, 0}, start == [4]byte{0, 0, 0xfe, 0xff}:
		return nil, nil, errors.New("the text is in UTF-32, which is not read; save it in UTF-8")
	case start[0] == 0xff && start[1] == 0xfe:
		return fromUTF16(data[2:], binary.LittleEndian)
	case start[0] == 0xfe && start[1] == 0xff:
		return fromUTF16(data[2:], binary.BigEndian)
	case start[0] == 0, start[1] == 0:
		return nil, nil, errors.New("the text is in UTF-16 or UTF-32 without a byte order mark, or is no text; save it in UTF-8")
	}
	data = bytes.TrimPrefix(data, []byte(byteOrderMark))
	if utf8.Valid(data) {
		return data, nil, nil
	}
	odd = fmt.Errorf("line %d: the text is not in UTF-8; each invalid part is read as U+FFFD", lineOfInvalid(data))
	return bytes.ToValidUTF8(data, []byte("\ufffd")), odd, nil
}

// fromUTF16 decodes text without its byte order mark.
func fromUTF16(data []byte, order binary.ByteOrder) (text []byte, odd, err error) {
	text = make([]byte, 0, len(data)/2+len(data)/8)
	for len(data) > 1 {
		r := rune(order.Uint16(data))
		data = data[2:]
		if utf16.IsSurrogate(r) && len(data) > 1 {
			if pair := utf16.DecodeRune(r, rune(order.Uint16(data))); pair != utf8.RuneError {
				r, data = pair, data[2:]
			}
		}
		text = utf8.AppendRune(text, r)
	}
	if len(data) > 0 {
		return nil, nil, errors.New("the text in UTF-16 ends in the middle of a character")
	}
	return text, nil, nil
}

func lineOfInvalid(data []byte) int {
	line := 1
	for len(data) > 0 {
		r, size := utf8.DecodeRune(data)
		if r == utf8.RuneError && size == 1 {
			break
		}
		if r == '\n' {
			line++
		}
		data = data[size:]
	}
	return line
}
