package reload

import (
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/textfile"
)

// How long a file must stay as it is before it counts.
const (
	pollPeriod = 200 * time.Millisecond // writers make several changes in a row
	doubtTime  = 2 * time.Second        // it is gone, empty, or ends in the middle of a line
	maxUnrest  = 10 * time.Second       // a file that keeps changing is read after this time
)

// rereadPeriod is how often a file is read that seems not to have changed: some
// file systems keep times in seconds.
const rereadPeriod = 10 * time.Second

// watch notices changes of a file by polling it. It follows symbolic links
// anywhere in the path, as those of a mounted ConfigMap.
type watch struct {
	path string

	info    fs.FileInfo       // at the last poll; nil: the file cannot be examined
	since   time.Time         // when info last changed
	unrest  time.Time         // the first change that is not read yet; zero: all are
	read    time.Time         // when the file was last read
	content [sha256.Size]byte // of the file when changed last returned true
}

// changed polls the file. It returns true if the file has another content than
// when it last returned true, or cannot be read for another reason. A file that
// may still be written counts later.
func (w *watch) changed(now time.Time) bool {
	info, _ := os.Stat(w.path) // nil says as much as an error
	if w.since.IsZero() || !same(info, w.info) {
		w.info, w.since = info, now
		if w.unrest.IsZero() {
			w.unrest = now
		}
	}
	quiet := now.Sub(w.since)
	restless := !w.unrest.IsZero() && now.Sub(w.unrest) >= maxUnrest
	idle := w.unrest.IsZero() && now.Sub(w.read) < rereadPeriod
	if idle || quiet == 0 && !restless {
		return false
	}
	content, whole := digest(w.path)
	if !whole && quiet < doubtTime && !restless {
		return false
	}
	w.unrest, w.read = time.Time{}, now
	if content == w.content {
		return false
	}
	w.content = content
	return true
}

// same reports whether a file is the same and was not changed.
func same(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.Mode() == b.Mode() && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// digest returns one of the content, or of the reason why there is none. It
// returns false if a program may still be writing the file.
func digest(path string) (content [sha256.Size]byte, whole bool) {
	data, err := config.ReadFile(path)
	if tooLarge, ok := errors.AsType[*textfile.TooLargeError](err); ok {
		tooLarge.Size = 0 // it may grow further
	}
	if err != nil {
		return sha256.Sum256([]byte(err.Error())), false
	}
	return sha256.Sum256(data), strings.HasSuffix(string(data), "\n") || strings.HasSuffix(string(data), "}")
}
