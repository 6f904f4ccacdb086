package files

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/source/convert"
	"github.com/sluice-proxy/sluice/internal/text"
)

// mostProblems is how many problems of a file are reported one by one.
const mostProblems = 10

// reader turns the text of files into values.
type reader struct {
	convert  convert.Converter
	nodeName string
	limits   Limits
}

type object struct {
	key   key
	value any // nil: without meaning to a proxy
}

// content has the objects and problems of a file.
type content struct {
	objects  []object // each key once
	problems []route.Problem
	more     int  // problems that are only counted
	isBroken bool // the file cannot be read whole, so that no object counts
}

// report returns the problems of a file to report: the first ones, and the number of the others.
func (c content) report(path string) []route.Problem {
	if c.more == 0 {
		return c.problems
	}
	return append(slices.Clip(c.problems), route.Problem{
		Object: path, Reason: "and " + text.Count(c.more, "more problem"),
	})
}

// parser reads one file.
type parser struct {
	reader
	content

	name  string
	seen  map[key]bool
	units int // documents and items so far
}

// parse parses a file; name is for messages. It ends early if the context ends.
func (r reader) parse(ctx context.Context, name string, data []byte) content {
	p := &parser{reader: r, name: name, seen: map[key]bool{}}
	if err := checkEncoding(data); err != nil {
		p.fail(value{}, route.Problem{Reason: err.Error()})
		return p.content
	}
	text := bytes.TrimPrefix(data, []byte("\ufeff"))
	if bytes.Contains(text, []byte("\r\n")) {
		text = bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
	}
	p.documents(ctx, text)
	return p.content
}

// documents reads the documents of a file.
func (p *parser) documents(ctx context.Context, text []byte) {
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for line := 1; ctx.Err() == nil; {
		doc, err := documents.Read()
		switch {
		case errors.Is(err, io.EOF):
			return
		case err != nil: // the reader drops the text before the separator
			p.fail(value{}, route.Problem{Reason: fmt.Sprintf("line %d or later: %v; write it in the next line", line, err)})
			return
		case !p.document(doc, line), p.isBroken && len(p.problems) == mostProblems: // no later document can help
			return
		}
		line += bytes.Count(doc, []byte("\n")) + 1 // the reader drops the separator
	}
}

// document reads a document. It returns false if the file has too many.
func (p *parser) document(text []byte, line int) bool {
	if bytes.HasPrefix(text, []byte("---")) {
		_, text, _ = bytes.Cut(text, []byte("\n"))
		line++
	}
	if len(contentOf(text)) == 0 {
		return true
	}
	d := &document{text: text, line: line}
	values, err := d.values(p.limits.DocumentBytes)
	if err != nil {
		p.fail(value{}, route.Problem{Reason: err.Error()})
	}
	for _, v := range values {
		if !p.object(v, header{}) {
			return false
		}
	}
	return true
}

func (p *parser) add(v value, problem route.Problem) {
	if len(p.problems) == mostProblems {
		p.more++
		return
	}
	where := p.name
	if v.document != nil {
		where += fmt.Sprintf(": line %d",
			v.document.lineOf(strings.Trim(v.path+"."+problem.Field, "."), p.limits.DocumentBytes))
	}
	problem.Object = strings.TrimSuffix(where+": "+problem.Object, ": ")
	p.problems = append(p.problems, problem)
}

// fail adds a problem for which the file cannot be read whole.
func (p *parser) fail(v value, problem route.Problem) {
	p.isBroken = true
	p.add(v, problem)
}
