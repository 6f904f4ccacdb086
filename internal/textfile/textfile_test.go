package textfile

import (
	"strings"
	"testing"
	"testing/iotest"
)

// endless is a file of the kernel that has no size and no end.
type endless struct{ most int } // bytes that it was asked for at once

func (e *endless) Read(b []byte) (int, error) {
	e.most = max(e.most, len(b))
	return len(b), nil
}

// A reader without an end takes no more memory than its limit, in its last buffer.
func TestEndlessReader(t *testing.T) {
	const limit = 1<<20 - 7
	r := &endless{}
	_, err := ReadLimited("endless", r, Size{Limit: limit})
	if err == nil || !strings.HasPrefix(err.Error(), "endless is too large: it has more than the limit") {
		t.Errorf("error %v", err)
	}
	if r.most > limit+1 {
		t.Errorf("a buffer has room for %d bytes more, with a limit of %d", r.most, limit)
	}
	atOnce := iotest.DataErrReader(strings.NewReader(strings.Repeat("b", limit+1))) // the end with the last byte
	if got, err := ReadLimited("it", atOnce, Size{Limit: limit}); err == nil {
		t.Errorf("read %d bytes, with a limit of %d", len(got), limit)
	}
	for _, text := range []string{"", "a", strings.Repeat("b", 4096)} {
		for _, size := range []int64{0, 1, int64(len(text)), 1 << 30} {
			got, err := ReadLimited("it", strings.NewReader(text), Size{size, 4096})
			if string(got) != text || err != nil {
				t.Errorf("%d bytes, %d expected: read %d, %v", len(text), size, len(got), err)
			}
		}
	}
}
