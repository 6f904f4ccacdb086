package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"go.yaml.in/yaml/v2" // the version that kubectl reads YAML with
)

// yamlToJSON converts one YAML document, as kubectl does. Unlike kubectl it returns
// an error if text follows the document. It also returns the repeated keys, of which
// the last one counts.
func yamlToJSON(text []byte) (converted []byte, odd, err error) {
	value, err := decodeYAML(text, (*yaml.Decoder).SetStrict)
	if _, is := errors.AsType[*yaml.TypeError](err); is {
		odd = err
		value, err = decodeYAML(text, func(*yaml.Decoder, bool) {})
	}
	if err != nil {
		return nil, nil, err
	}
	if value, err = jsonValue(value); err != nil {
		return nil, nil, err
	}
	converted, err = json.Marshal(value)
	return converted, odd, err
}

func decodeYAML(text []byte, setStrict func(*yaml.Decoder, bool)) (any, error) {
	var value, rest any
	dec := yaml.NewDecoder(bytes.NewReader(text))
	setStrict(dec, true)
	err := dec.Decode(&value)
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	if _, is := errors.AsType[*yaml.TypeError](err); err != nil && !is {
		return nil, err
	}
	switch after := dec.Decode(&rest); {
	case errors.Is(after, io.EOF):
		return value, err
	case after != nil:
		return nil, after
	default:
		return nil, errors.New("there is more than one document")
	}
}

// jsonValue converts a YAML value to a JSON value: the keys of an object become
// strings.
func jsonValue(value any) (any, error) {
	switch v := value.(type) {
	case map[any]any:
		object := make(map[string]any, len(v))
		for key, inner := range v {
			name, err := keyText(key)
			if err != nil {
				return nil, err
			}
			if _, twice := object[name]; twice {
				return nil, fmt.Errorf("the key %s is given more than once, in different forms", strconv.Quote(shorten(name)))
			}
			if object[name], err = jsonValue(inner); err != nil {
				return nil, err
			}
		}
		return object, nil
	case []any:
		for i, inner := range v {
			var err error
			if v[i], err = jsonValue(inner); err != nil {
				return nil, err
			}
		}
	}
	return value, nil
}

// keyText returns a key as a string.
func keyText(key any) (string, error) {
	switch k := key.(type) {
	case string:
		return k, nil
	case int:
		return strconv.Itoa(k), nil
	case int64:
		return strconv.FormatInt(k, 10), nil
	case uint64:
		return strconv.FormatUint(k, 10), nil
	case bool:
		return strconv.FormatBool(k), nil
	case float64:
		return strconv.FormatFloat(k, 'g', -1, 32), nil
	}
	return "", fmt.Errorf("a key of an object is a %T; expected a string", key)
}
