package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"

	"sigs.k8s.io/yaml"
)

// document is one document of a file: YAML or JSON text, not yet read.
type document struct {
	number int // the first of a file is 1; those that say nothing do not count
	line   int // of the file, where it begins; the first is 1
	text   []byte
	err    error // it could not be told from what follows
}

// split cuts a file into documents. What begins with a brace is JSON, one
// value after the other, anything else YAML.
func split(data []byte) []document {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n"), []byte("{")) {
		if docs := splitJSON(data); docs[0].err == nil {
			return docs
		}
	}
	return splitYAML(data)
}

func splitJSON(data []byte) []document {
	var docs []document
	dec := json.NewDecoder(bytes.NewReader(data))
	for {
		doc := document{number: len(docs) + 1, line: 1 + bytes.Count(data[:dec.InputOffset()], []byte("\n"))}
		var text json.RawMessage
		err := dec.Decode(&text)
		if errors.Is(err, io.EOF) {
			return docs
		}
		doc.text, doc.err = text, err
		docs = append(docs, doc)
		if err != nil {
			return docs
		}
	}
}

// splitYAML cuts at lines that begin with three dashes, which nothing inside
// a YAML document can.
func splitYAML(data []byte) []document {
	var docs []document
	start, begin := 0, 1 // of the document: offset and line
	add := func(end int) {
		if text := data[start:end]; saysSomething(text) {
			docs = append(docs, document{number: len(docs) + 1, line: begin, text: text})
		}
	}
	offset, number := 0, 1
	for line := range bytes.Lines(data) {
		if isSeparator(line) {
			add(offset)
			start, begin = offset, number
		}
		offset += len(line)
		number++
	}
	add(offset)
	return docs
}

func isSeparator(line []byte) bool {
	rest, ok := bytes.CutPrefix(line, []byte("---"))
	return ok && (len(rest) == 0 || bytes.ContainsRune([]byte(" \t\r\n"), rune(rest[0])))
}

// saysSomething reports whether there is more than separators and comments.
func saysSomething(text []byte) bool {
	for line := range bytes.Lines(text) {
		if isSeparator(line) {
			line = line[3:]
		}
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && !bytes.Equal(line, []byte("...")) {
			return true
		}
	}
	return false
}

// toJSON returns the document as JSON, and what is odd about it though it can
// be read. Lines in errors are those of the file.
func (d document) toJSON() (text []byte, odd, err error) {
	if d.err != nil {
		return nil, nil, d.err
	}
	if json.Valid(d.text) {
		return d.text, nil, nil
	}
	text, err = yaml.YAMLToJSONStrict(d.text)
	if err == nil {
		return text, nil, nil
	}
	text, loose := yaml.YAMLToJSON(d.text)
	err = fmt.Errorf("read YAML: %s", oneLine(d.relocate(err.Error())))
	if loose != nil {
		return nil, nil, err
	}
	return text, err, nil
}

// relocate makes the lines of the document in a message those of the file.
func (d document) relocate(message string) string {
	return regexp.MustCompile(`line \d+`).ReplaceAllStringFunc(message, func(text string) string {
		line, _ := strconv.Atoi(text[len("line "):])
		return fmt.Sprintf("line %d", line+d.line-1)
	})
}
