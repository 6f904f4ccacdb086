//go:build linux

package fetch

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Tags of protobuf fields with a length: the number of the field, and wire type 2.
const (
	field1 = 1<<3 | 2
	field2 = 2<<3 | 2
)

// magic begins everything that the API server encodes in protobuf.
const magic = "k8s\x00"

// bufferSize is the size of a read buffer. It is small, as each of many clients has two.
const bufferSize = 32 << 10

// drainList reads a list to its end, counts its items without decoding them, and returns the token of the next page.
//
// A list is the magic and a runtime.Unknown, whose field 1 is the type and whose field 2
// is the list: metadata in field 1, and an item in each field 2.
func drainList(body io.Reader) (count int, next string, err error) {
	r := bufio.NewReaderSize(body, bufferSize)
	begin := make([]byte, len(magic))
	if _, err := io.ReadFull(r, begin); err != nil {
		return 0, "", fmt.Errorf("read the begin of a list: %w", err)
	}
	if string(begin) != magic {
		return 0, "", fmt.Errorf("%q is not the begin of a list in protobuf", begin)
	}
	if err := skip(r, field1); err != nil {
		return 0, "", err
	}
	length, err := header(r, field2)
	if err != nil {
		return 0, "", err
	}
	rest := &io.LimitedReader{R: r, N: length}
	list := bufio.NewReaderSize(rest, bufferSize)
	if next, err = token(list); err != nil {
		return 0, "", err
	}
	for {
		if err = skip(list, field2); errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return count, "", err
		}
		count++
	}
	if rest.N > 0 {
		return count, "", io.ErrUnexpectedEOF
	}
	_, err = io.Copy(io.Discard, r)
	return count, next, err
}

// token reads the metadata of a list.
func token(r *bufio.Reader) (string, error) {
	length, err := header(r, field1)
	if err != nil {
		return "", err
	}
	text := make([]byte, length)
	if _, err := io.ReadFull(r, text); err != nil {
		return "", fmt.Errorf("read the metadata of a list: %w", err)
	}
	var meta metav1.ListMeta
	err = meta.Unmarshal(text)
	return meta.Continue, err
}

// header reads the tag and the length of a field. The error is io.EOF if there is no further field.
func header(r *bufio.Reader, want byte) (int64, error) {
	tag, err := r.ReadByte()
	if err != nil {
		return 0, err
	}
	if tag != want {
		return 0, fmt.Errorf("a field begins with %#x, want %#x", tag, want)
	}
	length, err := binary.ReadUvarint(r)
	if err != nil {
		return 0, fmt.Errorf("read the length of a field: %w", unexpected(err))
	}
	return int64(length), nil
}

// skip reads a field and forgets it.
func skip(r *bufio.Reader, want byte) error {
	length, err := header(r, want)
	if err != nil {
		return err
	}
	if _, err := r.Discard(int(length)); err != nil {
		return fmt.Errorf("read a field: %w", unexpected(err))
	}
	return nil
}

// unexpected makes an end of the data within a field an error of its own.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// drainStream reads a streaming list up to the bookmark at its end, and counts its objects. Each
// event is a length of four bytes and a metav1.WatchEvent.
func drainStream(body io.Reader) (count int, err error) {
	r := bufio.NewReaderSize(body, bufferSize)
	var length [4]byte
	var event []byte
	for {
		if _, err := io.ReadFull(r, length[:]); err != nil {
			return count, fmt.Errorf("the stream ended before the bookmark: %w", err)
		}
		size := int(binary.BigEndian.Uint32(length[:]))
		event = slices.Grow(event[:0], size)[:size]
		if _, err := io.ReadFull(r, event); err != nil {
			return count, fmt.Errorf("read an event: %w", err)
		}
		switch kind := eventType(event); kind {
		case "ADDED":
			count++
		case "BOOKMARK":
			if bytes.Contains(event, []byte(metav1.InitialEventsAnnotationKey)) {
				return count, nil
			}
		default:
			return count, fmt.Errorf("an event of type %q: %.300q", kind, event)
		}
	}
}

// eventType returns field 1 of a WatchEvent, which is shorter than 128 bytes.
func eventType(event []byte) string {
	if len(event) < 2 || event[0] != field1 || len(event) < 2+int(event[1]) {
		return ""
	}
	return string(event[2 : 2+int(event[1])])
}
