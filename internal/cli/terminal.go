package cli

import (
	"io"
	"os"

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
	f, is := w.(*os.File)
	if !is || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "" || os.Getenv("TERM") == "dumb" {
		return text.Safe(w)
	}
	if info, err := f.Stat(); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return text.Safe(w)
	}
	return terminal{text.Safe(w), f}
}
