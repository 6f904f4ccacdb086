package manifest

import (
	"bytes"
	"encoding/json"
	"slices"
)

// document is one document of a file: YAML or JSON text, not yet read.
type document struct {
	number int // from 1; empty documents do not count
	line   int // of the file, where it begins; the first is 1
	text   []byte
	isJSON bool  // the text is valid JSON
	notA   error // why a text that begins like JSON is not JSON; nil: it does not, or is
}

// split cuts a file into documents. Every byte of the text is in a document, a
// separator, a comment or white space.
//
// It cuts YAML where the YAML parser finds the marks of documents, which are
// lines that begin with "---" or "...", and JSON after each value. It also
// returns how many documents there are; if that is more than the limit, it
// returns none of them.
func split(text []byte, limit int) ([]document, int) {
	var docs []document
	total := 0
	c := cutter{text: text, line: 1}
	for c.at < len(text) {
		d := c.next()
		if !hasContent(d.text) {
			continue
		}
		total++
		if d.number = total; total > limit {
			docs = nil
			continue
		}
		docs = append(docs, d)
	}
	return docs, total
}

// cutter cuts documents off a text from the front.
type cutter struct {
	text []byte
	at   int // where the next document begins
	line int // of at
}

// next cuts off a document, or text between documents.
func (c *cutter) next() document {
	d := document{line: c.line}
	content := c.contentStart()
	if content < len(c.text) && c.text[content] == '{' {
		end, err := valueEnd(c.text[content:])
		if end += content; err == nil && c.endsDocument(end) {
			d.line += countLines(c.text[c.at:content])
			d.text, d.isJSON = c.text[content:end], true
			c.advance(skipSpace(c.text, end))
			return d
		}
		d.notA = err
	}
	end := c.yamlEnd()
	d.text = withoutMark(c.text[c.at:end], content-c.at)
	c.advance(end)
	return d
}

func (c *cutter) advance(to int) {
	c.line += countLines(c.text[c.at:to])
	c.at = to
}

// contentStart returns where the first content of the next document is, behind
// its separator, comments and white space.
func (c *cutter) contentStart() int {
	at := c.at
	at += len(c.text[at:]) - len(bytes.TrimPrefix(c.text[at:], []byte(byteOrderMark)))
	if isMark(c.text[at:], "---") {
		at += len("---")
	}
	for {
		at = skipSpace(c.text, at)
		if at == len(c.text) || c.text[at] != '#' {
			return at
		}
		at += lineLength(c.text[at:])
	}
}

// endsDocument reports whether a JSON value that ends at an offset is a whole
// document: nothing follows it, or another value, or a mark.
func (c *cutter) endsDocument(end int) bool {
	next := skipSpace(c.text, end)
	if next == len(c.text) || c.text[next] == '{' {
		return true
	}
	rest := c.text[next:]
	return (isMark(rest, "---") || isMark(rest, "...")) && countLines(c.text[end:next]) > 0 &&
		bytes.IndexByte([]byte(" \t"), c.text[next-1]) < 0
}

// yamlEnd returns where the YAML document at the start ends: before the next
// "---", unless only directives are before that, or behind the next "...".
func (c *cutter) yamlEnd() int {
	directives, content := false, false
	for at := c.at; at < len(c.text); at += lineLength(c.text[at:]) {
		line := bytes.TrimPrefix(c.text[at:], []byte(byteOrderMark))
		switch {
		case isMark(line, "..."):
			return len(c.text) - len(line) + len("...")
		case isMark(line, "---") && at > c.at && (content || !directives):
			return at
		case isMark(line, "---"):
			content = true
		case !content && bytes.HasPrefix(line, []byte("%")):
			directives = true
		case !content:
			content = hasContent(line[:lineLength(line)])
		}
	}
	return len(c.text)
}

// valueEnd returns where the JSON value at the start of a text ends.
func valueEnd(text []byte) (int, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	var value json.RawMessage
	err := dec.Decode(&value)
	return int(dec.InputOffset()), err
}

// skipSpace returns the offset of what follows white space and byte order marks.
func skipSpace(text []byte, at int) int {
	for at < len(text) {
		if bytes.IndexByte([]byte(" \t\r\n"), text[at]) >= 0 {
			at++
		} else if n := max(breakLength(text[at:]), markLength(text[at:])); n > 0 {
			at += n
		} else {
			break
		}
	}
	return at
}

// withoutMark returns a document without the byte order mark before its content,
// which the YAML parser takes only at the start of a text.
func withoutMark(text []byte, content int) []byte {
	text = bytes.TrimPrefix(text, []byte(byteOrderMark))
	before := text[:min(content, len(text))]
	if !bytes.Contains(before, []byte(byteOrderMark)) {
		return text
	}
	return slices.Concat(bytes.ReplaceAll(before, []byte(byteOrderMark), nil), text[len(before):])
}

func markLength(text []byte) int {
	if bytes.HasPrefix(text, []byte(byteOrderMark)) {
		return len(byteOrderMark)
	}
	return 0
}

// isMark reports whether a line is a mark between documents: nothing but white
// space or its end may follow the dashes or dots.
func isMark(line []byte, mark string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(mark))
	return ok && (len(rest) == 0 || rest[0] == ' ' || rest[0] == '\t' || breakLength(rest) > 0)
}

// hasContent reports whether text has more than marks and comments.
func hasContent(text []byte) bool {
	for len(text) > 0 {
		n := lineLength(text)
		line := bytes.TrimPrefix(text[:n], []byte(byteOrderMark))
		if isMark(line, "---") || isMark(line, "...") {
			line = line[3:]
		}
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			return true
		}
		text = text[n:]
	}
	return false
}

// lineLength returns the length of the first line of a text with its end.
func lineLength(text []byte) int {
	for i, b := range text {
		if b != '\n' && b != '\r' && b != 0xc2 && b != 0xe2 {
			continue
		}
		if n := breakLength(text[i:]); n > 0 {
			return i + n
		}
	}
	return len(text)
}

// breakLength returns the length of the line end that a text begins with; 0 if
// there is none. These are the line ends of YAML 1.1, which the parser knows.
func breakLength(text []byte) int {
	switch {
	case len(text) == 0:
	case text[0] == '\n':
		return 1
	case text[0] == '\r' && len(text) > 1 && text[1] == '\n':
		return 2
	case text[0] == '\r':
		return 1
	case bytes.HasPrefix(text, []byte("\u0085")):
		return len("\u0085")
	case bytes.HasPrefix(text, []byte("\u2028")), bytes.HasPrefix(text, []byte("\u2029")):
		return len("\u2028")
	}
	return 0
}

// countLines returns the number of line ends in a text.
func countLines(text []byte) int {
	n := 0
	for len(text) > 0 {
		length := lineLength(text)
		if length == len(text) && !endsLine(text) {
			break
		}
		text = text[length:]
		n++
	}
	return n
}

// endsLine reports whether a text ends with a line end.
func endsLine(text []byte) bool {
	for _, end := range []string{"\n", "\r", "\u0085", "\u2028", "\u2029"} {
		if bytes.HasSuffix(text, []byte(end)) {
			return true
		}
	}
	return false
}
