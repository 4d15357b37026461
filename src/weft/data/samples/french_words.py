"""Words of sample french: nouns, adjectives, verbs, names and times in English and French, with their inflection.

Tables are strings of entries "English:French". Regular forms follow by rules; irregular ones are spelled out. No
French word here begins with an aspirated h, so every h elides (l' homme).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Gender = Literal["m", "f"]
VOWELS = "aeiouhâàéèêëîïôûœ"
# English vowels that are spoken as consonants: a European country.
SPOKEN_AS_CONSONANT = ("European", "useful", "union", "university", "united")


@dataclass(frozen=True)
class Noun:
    """A noun in both languages, singular and plural; `gender` is that of the French one."""

    english: tuple[str, str]
    french: tuple[str, str]
    gender: Gender


@dataclass(frozen=True)
class Adjective:
    """An adjective and its French forms by gender and number; `liaison` stands before a vowel in the singular (m)."""

    english: str
    forms: dict[tuple[Gender, bool], str]
    liaison: str

    def form(self, gender: Gender, plural: bool, following: str = "") -> str:
        """The form that agrees, before the word `following`."""
        if gender == "m" and not plural and begins_with_vowel(following):
            return self.liaison
        return self.forms[gender, plural]


@dataclass(frozen=True)
class Verb:
    """A transitive verb: English present (two forms), past and participle; French forms.

    `present` is by person: I, he or she, we, you, they. `future` is the stem of the future.
    """

    english: tuple[str, str, str, str]
    infinitive: str
    present: tuple[str, ...]
    future: str
    participle: str


def begins_with_vowel(word: str) -> bool:
    """Whether le, la, de, ne, je, que lose their vowel before this French word."""
    return word[:1].lower() in VOWELS and bool(word)


def english_article(following: str) -> str:
    """A or an, by the word that follows."""
    return "an" if following[0].lower() in "aeiou" and not following.startswith(SPOKEN_AS_CONSONANT) else "a"


def with_s(word: str) -> str:
    """English plural of a noun, or third person of a verb."""
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "ch", "sh")) else "s")


def with_ed(word: str) -> str:
    """English past of a regular verb."""
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ied"
    return word + ("d" if word.endswith("e") else "ed")


def french_plural(word: str) -> str:
    """Regular French plural of a noun or a masculine adjective."""
    if word.endswith(("s", "x", "z")):
        return word
    if word.endswith("al"):
        return word[:-2] + "aux"
    return word + ("x" if word.endswith("eau") else "s")


def french_feminine(word: str) -> str:
    """Regular feminine of a French adjective."""
    for ending, feminine in (("er", "ère"), ("en", "enne"), ("el", "elle"), ("eux", "euse"), ("if", "ive"), ("e", "e")):
        if word.endswith(ending):
            return word.removesuffix(ending) + feminine
    return word + "e"


def _pairs(text: str) -> list[tuple[str, list[str]]]:
    """(English, French words) of entries such as "new:nouveau nouvelle nouvel", separated by commas."""
    entries = (entry.strip().partition(":") for entry in text.replace("\n", " ").split(","))
    return [(english, french.split()) for english, _, french in entries if english]


def _nouns(gender: Gender, text: str) -> tuple[Noun, ...]:
    return tuple(_noun(english, french, gender) for english, (french,) in _pairs(text))


def _noun(english: str, french: str, gender: Gender) -> Noun:
    plural = {"crisis": "crises"}.get(english) or with_s(english)
    return Noun((english, plural), (french, french_plural(french)), gender)


def _adjectives(text: str) -> tuple[Adjective, ...]:
    """Masculine, then an irregular feminine and the form before a vowel, where there are such."""
    found = []
    for english, (masculine, *more) in _pairs(text):
        feminine = more[0] if more else french_feminine(masculine)
        forms: dict[tuple[Gender, bool], str] = {
            ("m", False): masculine,
            ("m", True): french_plural(masculine),
            ("f", False): feminine,
            ("f", True): feminine + "s",
        }
        found.append(Adjective(english, forms, more[1] if len(more) > 1 else masculine))
    return tuple(found)


def _verbs(text: str) -> tuple[Verb, ...]:
    """The infinitive alone for regular verbs in -er; else with five forms of the present, future stem, participle."""
    found = []
    for english, (infinitive, *forms) in _pairs(text):
        base, *irregular = english.split()
        past, participle = irregular or [with_ed(base)] * 2
        if not forms:
            stem = infinitive.removesuffix("er")
            soft = stem + "e" if stem.endswith("g") else stem[:-1] + "ç" if stem.endswith("c") else stem
            forms = [stem + "e", stem + "e", soft + "ons", stem + "ez", stem + "ent", infinitive, stem + "é"]
        *present, future, done = forms
        found.append(Verb((base, with_s(base), past, participle), infinitive, tuple(present), future, done))
    return tuple(found)


ACTORS = _nouns(
    "m",
    """council:conseil, government:gouvernement, parliament:parlement, minister:ministre, president:président,
    committee:comité, party:parti, farmer:agriculteur, worker:travailleur, citizen:citoyen, member:membre,
    country:pays, state:État, expert:expert, ambassador:ambassadeur, group:groupe, mayor:maire, court:tribunal""",
) + _nouns(
    "f",
    """commission:commission, company:entreprise, bank:banque, delegation:délégation, assembly:assemblée,
    authority:autorité, region:région, city:ville, organisation:organisation, university:université,
    association:association, family:famille""",
)
# What is agreed upon between two sides, what is written on a matter, and what is meant for a purpose.
AGREEMENTS = _nouns("m", "agreement:accord, treaty:traité, contract:contrat") + _nouns(
    "f", "convention:convention, alliance:alliance"
)
TEXTS = _nouns("m", "report:rapport, text:texte, speech:discours, article:article") + _nouns(
    "f",
    """law:loi, proposal:proposition, decision:décision, resolution:résolution, question:question,
    letter:lettre, study:étude, directive:directive, declaration:déclaration, survey:enquête""",
)
# What is added to a text.
ADDITIONS = _nouns("m", "amendment:amendement") + _nouns("f", "answer:réponse, introduction:introduction")
PLANS = _nouns("m", "plan:plan, programme:programme, project:projet, budget:budget, system:système") + _nouns(
    "f",
    "policy:politique, reform:réforme, strategy:stratégie, measure:mesure, initiative:initiative, campaign:campagne",
)
ISSUES = _nouns("m", "market:marché, price:prix, right:droit, problem:problème, conflict:conflit, tax:impôt") + _nouns(
    "f", "crisis:crise, border:frontière, debt:dette, election:élection, currency:monnaie, area:zone"
)
# Without an article in English, with one in French.
FIELDS = _nouns("m", "trade:commerce, employment:emploi, tourism:tourisme, transport:transport, sport:sport") + _nouns(
    "f",
    """agriculture:agriculture, energy:énergie, education:éducation, health:santé, security:sécurité,
    research:recherche, culture:culture, immigration:immigration, industry:industrie, growth:croissance, peace:paix,
    democracy:démocratie, justice:justice""",
)
# Adjectives before the noun, of its kind, and of its origin; in French the last two follow the noun, origin last.
BEFORE = _adjectives(
    """new:nouveau nouvelle nouvel, old:vieux vieille vieil, great:grand, small:petit, good:bon bonne, bad:mauvais,
    excellent:excellent"""
)
BEFORE_DEFINITE = _adjectives("first:premier, last:dernier")
OF_KIND = _adjectives(
    """economic:économique, political:politique, social:social, financial:financier, agricultural:agricole,
    international:international, national:national, regional:régional, public:public publique, private:privé,
    military:militaire, industrial:industriel, legal:juridique, commercial:commercial, cultural:culturel,
    local:local, democratic:démocratique, administrative:administratif, common:commun, modern:moderne"""
)
OF_ORIGIN = _adjectives(
    """European:européen, French:français, Italian:italien, German:allemand, Spanish:espagnol, British:britannique,
    American:américain, Canadian:canadien, Japanese:japonais, Belgian:belge, Swiss:suisse, Portuguese:portugais"""
)
SAID_OF_THINGS = _adjectives(
    """important:important, necessary:nécessaire, clear:clair, difficult:difficile, useful:utile, possible:possible,
    dangerous:dangereux, reasonable:raisonnable, secret:secret secrète, complete:complet complète,
    effective:efficace, expensive:coûteux, positive:positif"""
)
SAID_OF_ACTORS = _adjectives(
    """ready:prêt, satisfied:satisfait, responsible:responsable, careful:prudent, strong:fort, absent:absent,
    present:présent, active:actif, generous:généreux"""
)
VERBS = _verbs(
    """adopt:adopter, sign:signer, approve:approuver, accept:accepter, examine:examiner, prepare:préparer,
    amend:modifier, finance:financer, improve:améliorer, ratify:ratifier, study:étudier,
    support:soutenir soutiens soutient soutenons soutenez soutiennent soutiendr soutenu,
    defend:défendre défends défend défendons défendez défendent défendr défendu,
    reject:rejeter rejette rejette rejetons rejetez rejettent rejetter rejeté,
    protect:protéger protège protège protégeons protégez protègent protéger protégé,
    choose chose chosen:choisir choisis choisit choisissons choisissez choisissent choisir choisi,
    follow:suivre suis suit suivons suivez suivent suivr suivi,
    translate:traduire traduis traduit traduisons traduisez traduisent traduir traduit"""
)
GIVING = _verbs(
    """present:présenter, propose:proposer, announce:annoncer, explain:expliquer, recommend:recommander,
    send sent sent:envoyer envoie envoie envoyons envoyez envoient enverr envoyé"""
)
MODALS = (
    ("must", "must", "dois doit devons devez doivent"),
    ("can", "can", "peux peut pouvons pouvez peuvent"),
    ("want to", "wants to", "veux veut voulons voulez veulent"),
)
NUMBERS = _pairs("two:deux, three:trois, four:quatre, five:cinq, six:six, ten:dix")
# Proper names: English words, French words, and per French word the English one that it says, by their numbers.
# The first French word is the article. "f" and "m" are followed by s where French has a plural.
NAMES = (
    ("the European Economic Area", "la zone économique européenne", "0 3 2 1", "f"),
    ("the European Union", "la Union européenne", "0 2 1", "f"),
    ("the European Parliament", "le Parlement européen", "0 2 1", "m"),
    ("the European Commission", "la Commission européenne", "0 2 1", "f"),
    ("the European Central Bank", "la Banque centrale européenne", "0 3 2 1", "f"),
    ("the Security Council", "le Conseil de sécurité", "0 2 1 1", "m"),
    ("the Council of Ministers", "le Conseil de les ministres", "0 1 2 2 3", "m"),
    ("the Court of Justice", "la Cour de justice", "0 1 2 3", "f"),
    ("the World Bank", "la Banque mondiale", "0 2 1", "f"),
    ("the International Monetary Fund", "le Fonds monétaire international", "0 3 2 1", "m"),
    ("the International Criminal Court", "la Cour pénale internationale", "0 3 2 1", "f"),
    ("the United Nations", "les Nations unies", "0 2 1", "fs"),
    ("the Red Cross", "la Croix-Rouge", "0 1+2", "f"),
)
COUNTRIES = tuple(
    (english, article, french)
    for article, text in (
        (
            "la",
            """France:France, Italy:Italie, Germany:Allemagne, Spain:Espagne, Sweden:Suède, Belgium:Belgique,
            Greece:Grèce, Poland:Pologne, Ireland:Irlande, Austria:Autriche, Norway:Norvège, China:Chine, India:Inde,
            Finland:Finlande, Switzerland:Suisse, Turkey:Turquie""",
        ),
        ("le", "Portugal:Portugal, Denmark:Danemark, Japan:Japon, Canada:Canada, Brazil:Brésil, Mexico:Mexique"),
        ("les", "the Netherlands:Pays-Bas, the United States:États-Unis"),
    )
    for english, (french,) in _pairs(text)
)
CITIES = _pairs(
    """Paris:Paris, Rome:Rome, London:Londres, Brussels:Bruxelles, Geneva:Genève, Lisbon:Lisbonne, Athens:Athènes,
    Vienna:Vienne, Warsaw:Varsovie, Strasbourg:Strasbourg, Berlin:Berlin, Madrid:Madrid, Copenhagen:Copenhague,
    Moscow:Moscou, Lyons:Lyon, Oslo:Oslo, Maastricht:Maastricht, Porto:Porto"""
)
MONTHS = _pairs(
    """January:janvier, February:février, March:mars, April:avril, May:mai, June:juin, July:juillet, August:août,
    September:septembre, October:octobre, November:novembre, December:décembre"""
)
# Times by tense: English, French, and per French word the English one.
PAST_TIMES = (
    ("yesterday", "hier", "0"),
    ("last week", "la semaine dernière", "1 1 0"),
    ("last month", "le mois dernier", "1 1 0"),
    ("last year", "la année dernière", "1 1 0"),
)
PRESENT_TIMES = (
    ("today", "aujourd'hui", "0"),
    ("this week", "cette semaine", "0 1"),
    ("this month", "ce mois", "0 1"),
    ("this year", "cette année", "0 1"),
)
FUTURE_TIMES = (
    ("tomorrow", "demain", "0"),
    ("next week", "la semaine prochaine", "1 1 0"),
    ("next month", "le mois prochain", "1 1 0"),
    ("next year", "la année prochaine", "1 1 0"),
)
