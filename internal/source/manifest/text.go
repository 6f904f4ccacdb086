package manifest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// byteOrderMark may begin a file, and each of several files that were joined.
const byteOrderMark = "\ufeff"

// toUTF8 returns the text of a file without byte order marks. Like kubectl it
// accepts UTF-8, UTF-16 with a byte order mark, and text with invalid bytes, which
// it replaces by U+FFFD and describes in invalid. Any other encoding is an error.
func toUTF8(data []byte) (text []byte, invalid, err error) {
	start := [4]byte{1, 1, 1, 1} // where there is no data
	copy(start[:], data)
	switch {
	case start == [4]byte{0xff, 0xfe, 0, 0}, start == [4]byte{0, 0, 0xfe, 0xff}:
		return nil, nil, errors.New("the text is in UTF-32, which is not read; save it in UTF-8")
	case start[0] == 0xff && start[1] == 0xfe:
		data, err = fromUTF16(data[2:], binary.LittleEndian)
	case start[0] == 0xfe && start[1] == 0xff:
		data, err = fromUTF16(data[2:], binary.BigEndian)
	case start[0] == 0, start[1] == 0:
		return nil, nil, errors.New("the text is in UTF-16 or UTF-32 without a byte order mark, or is no text; save it in UTF-8")
	}
	if err != nil {
		return nil, nil, err
	}
	data = bytes.TrimPrefix(data, []byte(byteOrderMark))
	if !utf8.Valid(data) {
		line := 1 + bytes.Count(data[:bytes.IndexRune(data, utf8.RuneError)], []byte("\n"))
		invalid = fmt.Errorf("line %d: the text is not in UTF-8; each invalid part is read as U+FFFD", line)
		data = bytes.ToValidUTF8(data, []byte("\ufffd"))
	}
	if bytes.Contains(data, []byte("\n"+byteOrderMark)) {
		data = bytes.ReplaceAll(data, []byte("\n"+byteOrderMark), []byte("\n"))
	}
	return data, invalid, nil
}

// fromUTF16 decodes text without its byte order mark.
func fromUTF16(data []byte, order binary.ByteOrder) ([]byte, error) {
	if len(data)%2 != 0 {
		return nil, errors.New("the text in UTF-16 ends in the middle of a character")
	}
	text := make([]byte, 0, len(data)/2+len(data)/8)
	for len(data) > 0 {
		r := rune(order.Uint16(data))
		data = data[2:]
		if utf16.IsSurrogate(r) && len(data) > 0 {
			if pair := utf16.DecodeRune(r, rune(order.Uint16(data))); pair != utf8.RuneError {
				r, data = pair, data[2:]
			}
		}
		text = utf8.AppendRune(text, r)
	}
	return text, nil
}

// lineEnds are the line ends of YAML 1.1, which the parser knows. CR LF is one.
const lineEnds = "\n\r\u0085\u2028\u2029"

// lineLength returns the length of the first line of a text with its end.
func lineLength(text []byte) int {
	for i, b := range text {
		if b != '\n' && b != '\r' && b != 0xc2 && b != 0xe2 {
			continue
		}
		if bytes.HasPrefix(text[i:], []byte("\r\n")) {
			return i + len("\r\n")
		}
		if r, size := utf8.DecodeRune(text[i:]); strings.ContainsRune(lineEnds, r) {
			return i + size
		}
	}
	return len(text)
}

// lines iterates over the lines of a text, each with its end.
func lines(text []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(text) > 0 {
			n := lineLength(text)
			if !yield(text[:n]) {
				return
			}
			text = text[n:]
		}
	}
}

// endsLine reports whether a text ends with a line end.
func endsLine(text []byte) bool {
	r, _ := utf8.DecodeLastRune(text)
	return strings.ContainsRune(lineEnds, r)
}

// countLines returns the number of line ends in a text.
func countLines(text []byte) int {
	n := 0
	for line := range lines(text) {
		if endsLine(line) {
			n++
		}
	}
	return n
}

// indentOf returns the number of spaces at the start of a line.
func indentOf(line []byte) int { return len(line) - len(bytes.TrimLeft(line, " ")) }

// hasMark reports whether a line begins with a mark such as "---" or "-": only white
// space or the end of the line may follow it.
func hasMark(line []byte, mark string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(mark))
	r, _ := utf8.DecodeRune(rest)
	return ok && (len(rest) == 0 || strings.ContainsRune(" \t"+lineEnds, r))
}

// hasContent reports whether text has more than document marks and comments.
func hasContent(text []byte) bool {
	for line := range lines(text) {
		if hasMark(line, "---") || hasMark(line, "...") {
			line = line[len("---"):]
		}
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			return true
		}
	}
	return false
}

// oneLine returns text without line ends.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
