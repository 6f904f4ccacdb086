package text

import (
	"bytes"
	"io"
)

// Mark is how a terminal highlights a line.
type Mark string

// The marks are colours of ANSI.
const (
	Good    Mark = "\x1b[32m"
	Warning Mark = "\x1b[33m"
	Bad     Mark = "\x1b[31m"

	plain = "\x1b[0m"
)

// NewColoured returns a Columns for a terminal: marked lines have a colour, and all text is made Safe.
func NewColoured(w io.Writer) *Columns {
	p := &painter{to: w, marks: map[int]Mark{}}
	c := NewColumns(Safe(p))
	c.marks = p.marks
	return c
}

// painter colours the lines that have a mark.
type painter struct {
	to    io.Writer
	marks map[int]Mark // by the number of the line
	line  int          // that is being written
	begun bool
}

func (p *painter) Write(b []byte) (int, error) {
	var out []byte
	for part := range bytes.Lines(b) {
		mark, marked := p.marks[p.line]
		if marked && !p.begun {
			out = append(out, mark...)
		}
		text, ended := bytes.CutSuffix(part, []byte("\n"))
		out = append(out, text...)
		if p.begun = !ended; ended {
			if marked {
				out = append(out, plain...)
			}
			out = append(out, '\n')
			delete(p.marks, p.line)
			p.line++
		}
	}
	_, err := p.to.Write(out)
	return len(b), err
}
