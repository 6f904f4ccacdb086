package cli

import (
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/sluice-proxy/sluice/internal/text"
)

// terminal is standard output that shows colours. Text that is written to it is made safe.
type terminal struct {
	io.Writer

	file *os.File
}

// safe returns a writer for answers of the daemon, which may have text from objects of any author: a terminal if w is
// one, unless the user wants no colours (https://no-color.org).
func safe(w io.Writer) io.Writer {
	if f := screen(w); f != nil && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "" && os.Getenv("TERM") != "dumb" {
		return terminal{text.Safe(w), f}
	}
	return text.Safe(w)
}

// screen returns the terminal to which a writer writes; nil: it is none.
func screen(w io.Writer) *os.File {
	if f, is := w.(*os.File); is && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}

// size returns the columns and rows of a terminal.
func size(f *os.File) (width, height int) {
	width, height, err := term.GetSize(int(f.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		return 80, 24
	}
	return width, height
}

// redraw replaces what is on a terminal by lines, of which it shows what it has room for.
func redraw(f *os.File, lines string) error {
	const clear = "\x1b[H\x1b[J"
	width, height := size(f)
	_, err := io.WriteString(f, clear+fit(lines, width, height-1)) // the last row is the cursor's
	return err
}

// fit shortens lines to a width, and text to a number of lines.
func fit(lines string, width, height int) string {
	var b strings.Builder
	for line := range strings.Lines(lines) {
		if height--; height < 0 {
			break
		}
		if runes := []rune(strings.TrimSuffix(line, "\n")); len(runes) > width {
			line = string(runes[:width]) + "\n"
		}
		b.WriteString(line)
	}
	return b.String()
}
