package manifest

import (
	"bytes"
	"encoding/json"
)

// document is one document of a file: YAML or JSON text that is not parsed yet.
type document struct {
	number  int // from 1; empty documents do not count
	line    int // of the file, where the document begins; the first is 1
	text    []byte
	isJSON  bool  // the text is valid JSON
	notJSON error // why text that begins with a brace is not valid JSON; nil: it does not, or is
}

// split cuts a file into documents. Every byte of the text is in a document, a
// separator, a comment or white space.
//
// It cuts YAML where the YAML parser finds the marks of documents, which are
// lines that begin with "---" or "...", and JSON after each value. The readers of
// k8s.io/apimachinery know neither "..." nor directives, and lose the documents
// after them. It also returns how many documents there are; if that is more than
// the limit, it returns none of them.
func split(text []byte, limit int) ([]document, int) {
	var docs []document
	total := 0
	c := cutter{text: text, line: 1}
	for len(c.text) > 0 {
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

// cutter cuts documents off the start of a text.
type cutter struct {
	text []byte // that is left
	line int    // where it begins
}

// next cuts off a document, or text between documents.
func (c *cutter) next() document {
	d := document{line: c.line}
	if content := c.contentStart(); bytes.HasPrefix(c.text[content:], []byte("{")) {
		dec := json.NewDecoder(bytes.NewReader(c.text[content:]))
		var value json.RawMessage
		d.notJSON = dec.Decode(&value)
		end := content + int(dec.InputOffset())
		if d.notJSON == nil && endsDocument(c.text[end:]) {
			d.line += countLines(c.text[:content])
			d.text, d.isJSON = c.text[content:end], true
			c.cut(end + spaceLength(c.text[end:]))
			return d
		}
	}
	d.text = c.cut(c.yamlEnd())
	return d
}

// cut removes the first bytes of the text and returns them.
func (c *cutter) cut(n int) []byte {
	text := c.text[:n]
	c.line += countLines(text)
	c.text = c.text[n:]
	return text
}

// contentStart returns the offset of the first content of the next document, behind
// its separator, comments and white space.
func (c *cutter) contentStart() int {
	at := 0
	if hasMark(c.text, "---") {
		at = len("---")
	}
	for {
		at += spaceLength(c.text[at:])
		if !bytes.HasPrefix(c.text[at:], []byte("#")) {
			return at
		}
		at += lineLength(c.text[at:])
	}
}

// spaceLength returns the length of the white space at the start of a text.
func spaceLength(text []byte) int {
	return len(text) - len(bytes.TrimLeft(text, " \t"+lineEnds))
}

// endsDocument reports whether a JSON value before this text is a whole document:
// only white space follows it, another value, or a line with a mark.
func endsDocument(text []byte) bool {
	space := spaceLength(text)
	rest := text[space:]
	return len(rest) == 0 || rest[0] == '{' ||
		(hasMark(rest, "---") || hasMark(rest, "...")) && endsLine(text[:space])
}

// yamlEnd returns where the YAML document at the start ends: before the next
// "---", unless only directives are before that, or behind the next "...".
func (c *cutter) yamlEnd() int {
	directives, content := false, false
	at := 0
	for line := range lines(c.text) {
		switch {
		case hasMark(line, "..."):
			return at + len("...")
		case hasMark(line, "---") && at > 0 && (content || !directives):
			return at
		case hasMark(line, "---"):
			content = true
		case !content && bytes.HasPrefix(line, []byte("%")):
			directives = true
		case !content:
			content = hasContent(line)
		}
		at += len(line)
	}
	return at
}
