package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/internal/text"
)

// toJSON returns the document as JSON without repeated keys, the keys that were
// repeated, and other oddities that do not keep it from being read. Lines in errors
// are those of the file.
func (d document) toJSON(limit int64) (text []byte, repeats []repeat, odd, err error) {
	if d.isJSON {
		text, repeats, err = d.uniqueKeys(limit)
		return text, repeats, nil, err
	}
	if err := d.checkSize(limit); err != nil {
		return nil, nil, nil, err
	}
	if err := d.checkAliases(limit); err != nil {
		return nil, nil, nil, err
	}
	text, odd, err = yamlToJSON(d.text)
	switch {
	case err != nil && d.notA != nil && looksLikeJSON(d.text):
		return nil, nil, nil, d.jsonError()
	case err != nil:
		return nil, nil, nil, d.yamlError(err)
	case odd != nil:
		odd = d.yamlError(odd)
	}
	if depth := scanJSON(text).depth; depth > maxDepth {
		return nil, nil, nil, tooDeep(depth)
	}
	if odd != nil {
		repeats = d.repeats()
	}
	if len(repeats) > 0 {
		odd = nil
	}
	return text, repeats, odd, nil
}

// uniqueKeys returns a JSON document with only the last of each repeated key, and
// these keys.
func (d document) uniqueKeys(limit int64) ([]byte, []repeat, error) {
	found := scanJSON(d.text)
	if found.depth > maxDepth {
		return nil, nil, tooDeep(found.depth)
	}
	if len(found.repeats) == 0 {
		return d.text, nil, nil
	}
	first := found.repeats[0]
	if err := d.checkSize(limit); err != nil {
		return nil, nil, fmt.Errorf("line %d: %s is given more than once, which is not sorted out because %w", d.line+first.line-1, first.path, err)
	}
	var value any
	dec := json.NewDecoder(bytes.NewReader(d.text))
	dec.UseNumber()
	if err := dec.Decode(&value); err != nil {
		return nil, nil, fmt.Errorf("read JSON: %w", err)
	}
	text, err := json.Marshal(value)
	return text, found.repeats, err
}

// checkSize returns an error if the document is too large to be read as a whole.
func (d document) checkSize(limit int64) error { return checkSize("the document", d.text, limit) }

// checkSize returns an error if a text is longer than the limit or has so many
// values that it takes as much memory as a longer one.
func checkSize(what string, said []byte, limit int64) error {
	if size := int64(len(said)); size > limit {
		return tooLarge(what, size, limit)
	}
	if values, most := countValues(said), limit/bytesPerValue; values > most {
		return fmt.Errorf("%s has %s; the limit is %d", what, text.Count(int(values), "value"), most)
	}
	return nil
}

// countValues estimates from above how many values a YAML or JSON text has.
func countValues(text []byte) int64 {
	n := 1
	for _, mark := range []string{",", ":", "[", "{", "?", "- ", "-\n"} {
		n += bytes.Count(text, []byte(mark))
	}
	return int64(n)
}

func looksLikeJSON(text []byte) bool {
	_, rest, _ := bytes.Cut(text, []byte("{"))
	return bytes.HasPrefix(bytes.TrimSpace(rest), []byte(`"`))
}

// jsonError returns the reason why text that looks like JSON is not, with the line of
// the file.
func (d document) jsonError() error {
	start := max(0, bytes.IndexByte(d.text, '{'))
	at := len(bytes.TrimSpace(d.text))
	if e, ok := errors.AsType[*json.SyntaxError](d.notA); ok {
		at = start + int(e.Offset)
	}
	what := d.notA
	if strings.Contains(what.Error(), "exceeded max depth") {
		return fmt.Errorf("objects and lists are nested more than 10000 levels deep; the limit is %d", maxDepth)
	}
	if errors.Is(what, io.ErrUnexpectedEOF) {
		what = errors.New("the text ends in the middle of a value")
	}
	return fmt.Errorf("read JSON: line %d: %w", d.line+countLines(d.text[:min(at, len(d.text))]), what)
}

// yamlError returns the reason why text is not YAML, with the line of the file. The
// parser names no line for the first line and for errors of the whole document.
func (d document) yamlError(err error) error {
	message := oneLine(d.relocate(err.Error()))
	if !strings.Contains(message, "line ") {
		return fmt.Errorf("read YAML: in or after line %d: %s", d.line, message)
	}
	return errors.New("read YAML: " + message)
}

// relocate replaces the lines of the document in a message by those of the file.
func (d document) relocate(message string) string {
	var out strings.Builder
	for {
		before, after, found := strings.Cut(message, "line ")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		digits := len(after) - len(strings.TrimLeft(after, "0123456789"))
		line, err := strconv.Atoi(after[:digits])
		if err == nil {
			line += d.line - 1
		}
		out.WriteString("line ")
		if err == nil {
			out.WriteString(strconv.Itoa(line))
		}
		message = after[digits:]
	}
}
