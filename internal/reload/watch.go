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

// How long a changed file must stay the same before it is read.
const (
	pollPeriod     = 200 * time.Millisecond // programs write a file in several steps
	incompleteTime = 2 * time.Second        // the file is missing, empty, or ends in the middle of a line
	maxWait        = 10 * time.Second       // a file that keeps changing is read after this time
)

// rereadPeriod is how often a file is read whose attributes did not change: some file
// systems store times in seconds.
const rereadPeriod = 10 * time.Second

// watch detects changes of a file by polling it. It follows symbolic links
// anywhere in the path, as those of a mounted ConfigMap.
type watch struct {
	path string

	info    fs.FileInfo       // at the last poll; nil: the file cannot be examined
	since   time.Time         // when info last changed
	unread  time.Time         // the first change that is not read yet; zero: all are
	read    time.Time         // when the file was last read
	content [sha256.Size]byte // of the file when changed last returned true
}

// changed polls the file. It returns true if the content, or the reason why it cannot
// be read, differs from when changed last returned true. It waits for the end of a write.
func (w *watch) changed(now time.Time) bool {
	info, _ := os.Stat(w.path) // nil after an error
	if w.since.IsZero() || !same(info, w.info) {
		w.info, w.since = info, now
		if w.unread.IsZero() {
			w.unread = now
		}
	}
	stable := now.Sub(w.since)
	overdue := !w.unread.IsZero() && now.Sub(w.unread) >= maxWait
	idle := w.unread.IsZero() && now.Sub(w.read) < rereadPeriod
	if idle || stable == 0 && !overdue {
		return false
	}
	content, whole := digest(w.path)
	if !whole && stable < incompleteTime && !overdue {
		return false
	}
	w.unread, w.read = time.Time{}, now
	if content == w.content {
		return false
	}
	w.content = content
	return true
}

// same reports whether a file has not changed.
func same(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.Mode() == b.Mode() && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// digest returns a digest of the content, or of the error of reading it. It returns
// false if a program may still be writing the file.
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
