"""Strings on which tokenizers differ: spaces, digits, punctuation, scripts, emoji, broken UTF-8, special tokens."""

from __future__ import annotations

SPACES = [
    *(" " * n for n in (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33)), "\n", "\n\n", "\n\n\n", "\t", "\t\t", "\r", "\r\n",
    "\r\n\r\n", " \n", "\n ", " \n ", "\t\n\t", "\n \n \n", "\v", "\f", "a b", "a  b", "a   b", "  a", "a  ", " a ",
    "\ta", "a\t", "a\t\tb", "a \t b", "a\nb", "a\n\nb", "a \n b", "a\n  b", "a\r\nb", "a\u00a0b", "a\u00a0\u00a0b",
    "a\u2003b", "a\u3000b", "a\u200bb", "a\u200db", "\u2028x", "\u2029", "a\u0085b", "\ufeffBOM", "a\u202fb",
    "x\u1680y", "if x:\n    y = 1\n\n\n    return y\n", "def f():\n\treturn\t1", "▁", "a▁b", " ▁ ",
]  # fmt: skip

DIGITS = [
    "0", "1", "12", "123", "1234", "12345", "123456", "1234567890", "0" * 20, "3.14159", "1,000,000", "1e-5", "0x1F",
    "v2.0.1", "2024-02-29", "12:34:56", "+1 (555) 010-9999", "$19.99", "50%", "a1b2c3", " 1", "  12", "1 2 3", "½ ¾",
    "²³", "Ⅷ", "١٢٣٤", "१२३", "１２３", "𝟙𝟚𝟛", "①②③", "1st 2nd 3rd", "12\n34", "5'10\"", "1'000",
]  # fmt: skip

WORDS = [
    "", "a", "A", "Hello", "hello", "HELLO", " Hello", "Hello world", "Hello, world!", "Hello World!!!",
    "camelCaseWord", "snake_case_word", "kebab-case", "supercalifragilisticexpialidocious", "Donaudampfschifffahrt",
    "antidisestablishment", "it's", "IT'S", "don't", "DON'T", "we're", "We'Re", "they've", "I'm", "I'll", "I'LL",
    "he'd", "'s", " 's", "''s", "'t'", "l'été", "'ſ", "it'ſ", "rock 'n' roll", "o’clock", "“quoted”", "x" * 50,
    "ab" * 40, "aaa aaaa aaaaa", "=" * 10, "-" * 33, "... …", "!?!?", "a.b.c", "a,b;c:d", "(a)[b]{c}", "<a>", "</a>",
    "&amp;", "#include <x>", "//comment", "/* c */", "\\n\\t", "http://example.org/a?b=c&d=%20#e", "me@example.org",
    "C:\\dir\\file.txt", "a+b=c*d/e^f|g~h`i", "**bold** _it_ `code`", "SELECT * FROM t WHERE a='b';",
    '{"k": [1, 2.5, null, "v"]}', "for(i=0;i<10;++i){a[i]+=i;}", "The quick brown fox.",
    "The GIL is held while this runs; it isn't released until the call returns.\n\nSee also: PEP 703.",
]  # fmt: skip

SCRIPTS = [
    "é", "e\u0301", "naïve café", "Straße", "ŁÓDŹ", "Ελληνικά", "Ωμέγα", "Русский язык", "Привет, мир!",
    "українська ї", "עברית", "שָׁלוֹם", "العربية", "السلام عليكم", "فارسی", "हिन्दी", "नमस्ते दुनिया", "বাংলা",
    "தமிழ்", "తెలుగు", "ไทย", "ภาษาไทย", "ລາວ", "မြန်မာ", "ខ្មែរ", "ქართული", "Հայերեն", "አማርኛ", "中文", "你好，世界！",
    "漢字かな交じり文", "ひらがな", "カタカナ", "ｶﾀｶﾅ", "한국어", "안녕하세요 세계",
    "Tiếng Việt", "Türkçe İıŞş", "ǅ ǆ ǉ", "ﬁ ﬂ", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
    "𐍈𐌰", "𓀀𓁐", "ꙮ", "𠀀𠀁", "㍿", "℃ № ™", "∑∫√∞≠≤", "←↑→↓", "█▓▒░", "♠♥♦♣", "€£¥₹₿", "¿Qué? ¡Sí!", "ﷺ",
    "\u202eabc\u202c", "Z͑ͫa̴l͘g͠o",
]  # fmt: skip

EMOJI = [
    *(
        "😀",
        "😀😀😀",
        " 😀",
        "a😀b",
        "👍🏽",
        "👨‍👩‍👧‍👦",
        "🏳️‍🌈",
        "🇩🇪🇯🇵",
        "❤️",
        "❤",
        "1️⃣",
        "🫠",
        "🪿 goose",
        "⚽️ 5:0",
        "🤷🏻‍♀️.",
    ),
]

CONTROLS = [
    "\x00", "a\x00b", "\x01\x02\x03", "\x1b[31mred\x1b[0m", "\x7f", "\x80".encode("latin-1"), "\ue000", "\uffff",
    "\U0010ffff",
]  # fmt: skip

BROKEN = [
    b"\xff", b"\xfe\xff", b"a\xffb", b"a \xff b", b"\xff\xff\xff", b"\x80", b"\xbf\xbf", b"abc\x80", b"\xc3",
    b"\xc3(", b"a\xc3", b"\xe2\x82", b"\xe2\x28\xa1", b"\xe2\x82(", b"\xf0\x9f", b"\xf0\x9f\x98", b"\xf0\x28\x8c\xbc",
    b"x\xf0\x9f\x98 y", b"\xf8\x88\x80", b"\xfc\x80\x80\x80", b"\xc0\x80", b"\xc1\xbf", b"\xe0\x80\xaf",
    b"\xf0\x80\x80\xaf", b"\xed\xa0\x80", b"\xed\xa0\xbd\xed\xb8\x80", b"a\xed\xbf\xbfb 1", b"\xe4\xb8\xad\xe6\x96",
    b"\x96\x87 ok", b"na\xefve", b"caf\xe9 \xa320", b"\xd0\xd1", b"1\xff2", b" \xff\xfe ",
]  # fmt: skip

SPECIALS = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>", "<unk>", "<|eot_id|>", "<|begin_of_text|>",
    "<|end_of_text|>", "<|im_start|>user\nHi<|im_end|>\n", "a<|im_start|>b", " <|im_end|> ",
    "<|im_start|><|im_start|>", "<|im_start", "im_start|>",
    "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat's 2+2?<|im_end|>\n<|im_start|>assistant\n",
    "<<|im_end|>>", "<s>[INST] Hello [/INST] Hi</s><s>", "<s> a", "</s>b", "<unk>x", "<0x0A>", "<0xFF>",
    "<repo_name>x<file_sep>", "<reponame>", "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>",
    "<|reserved_special_token_0|>", "<empty_output>", "<|IM_END|>", "<|im_\u200bend|>", "text <|endoftext|> text",
    "1<|endoftext|>2", "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
]  # fmt: skip
SPECIALS_BROKEN = [b"<|im_end|>\xff<|im_end|>", b"\xe2<|im_end|>\x82", b"<s>\xff</s>"]


def awkward_strings() -> list[bytes]:
    """All of them, as bytes, each once."""
    texts = [*SPACES, *DIGITS, *WORDS, *SCRIPTS, *EMOJI, *CONTROLS, *BROKEN, *SPECIALS, *SPECIALS_BROKEN]
    return list(dict.fromkeys(t.encode() if isinstance(t, str) else t for t in texts))
